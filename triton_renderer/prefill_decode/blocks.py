"""Who uses which block of the KV cache, and which blocks hold a prefix that another sequence may share.

Bookkeeping only: the keys and values are kv_cache.py's. A block holds BLOCK_TOKENS tokens of one sequence, and is used by
one sequence or, where it is full and they begin alike, by several. A block that nobody uses any more stays a *cached* one
until its place is needed, oldest first, so that a later prompt with the same beginning finds it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import blake3
import numpy as np
import numpy.typing as npt

BLOCK_TOKENS = 16

NULL_BLOCK = 0
"""Never given to a sequence: tables of unequal length are filled up with it. Nobody sees its keys and values: they are zero, or
those of the rows that fill a batch up (decode_graphs.py)."""


def blocks_for(tokens: int) -> int:
    """Blocks that hold that many tokens of one sequence."""
    return -(-tokens // BLOCK_TOKENS)


class BlockPool:
    """The blocks 1 to `num_blocks - 1`, each free, cached, or used by one or more sequences."""

    def __init__(self, num_blocks: int) -> None:
        """`num_blocks` counts the null block as well."""
        self.num_blocks = num_blocks
        self.reset()

    def reset(self) -> None:
        """Nobody uses a block, and none holds anything."""
        self._users = [0] * self.num_blocks
        # In the order in which they are given out: blocks without content first, then cached ones, oldest first.
        self._unused: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, self.num_blocks))
        self._by_hash: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}

    @property
    def num_usable(self) -> int:
        """All blocks that sequences can have."""
        return self.num_blocks - 1

    @property
    def num_unused(self) -> int:
        """Blocks that `allocate` can give out."""
        return len(self._unused)

    @property
    def num_cached(self) -> int:
        """Blocks whose content can be found, used at present or not."""
        return len(self._by_hash)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks for one user. The caller has looked at `num_unused`."""
        blocks = []
        for _ in range(count):
            block, _ = self._unused.popitem(last=False)
            self.forget(block)
            self._users[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more user for each of them; they are used, or cached."""
        for block in blocks:
            if not self._users[block]:
                del self._unused[block]
            self._users[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One user fewer for each block of a sequence, given in the sequence's order."""
        # The end of a sequence is found by fewer prompts than its beginning: it is to be given out again first.
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            self._unused[block] = None
            if block not in self._hashes:
                self._unused.move_to_end(block, last=False)

    def publish(self, block: int, block_hash: bytes) -> None:
        """The block is full, and this is what it holds. Nothing happens where another block holds the same."""
        if block not in self._hashes and block_hash not in self._by_hash:
            self._by_hash[block_hash] = block
            self._hashes[block] = block_hash

    def forget(self, block: int) -> None:
        """The block's content is not to be found any more."""
        block_hash = self._hashes.pop(block, None)
        if block_hash is not None:
            del self._by_hash[block_hash]

    def find(self, block_hashes: Iterable[bytes]) -> list[int]:
        """The blocks that hold the longest beginning of a sequence with these hashes."""
        found = []
        for block_hash in block_hashes:
            block = self._by_hash.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def distrust(self, blocks: Iterable[int]) -> list[int]:
        """Those of the blocks that only one sequence uses; their content is not to be found any more."""
        own = [block for block in blocks if self._users[block] == 1]
        for block in own:
            self.forget(block)
        return own

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises RuntimeError where the books do not agree with the sequences' tables; for an idle engine, and for tests."""
        users = [0] * self.num_blocks
        for table in tables:
            for block in table:
                users[block] += 1
        if users != self._users:
            wrong = next(block for block in range(self.num_blocks) if users[block] != self._users[block])
            raise RuntimeError(f"block {wrong} has {users[wrong]} users, the pool knows of {self._users[wrong]}")
        unused = {block for block in range(1, self.num_blocks) if not users[block]}
        if unused != self._unused.keys():
            raise RuntimeError(f"{len(unused)} blocks are without users, the pool knows of {len(self._unused)}")
        if {block: block_hash for block_hash, block in self._by_hash.items()} != self._hashes:
            raise RuntimeError("the cached blocks and their hashes do not agree")


class BlockHashes:
    """The hashes of a sequence's full blocks, each over everything before it as well.

    A hash is BLAKE3's 32 bytes over the hash of the block before, the token ids (int64), and the digest of each picture that
    has a token in the block, with its offset from the block's start. The chain begins with the salt: requests of different
    salts never share a block.
    """

    def __init__(self, salt: str | None, pictures: Sequence[tuple[int, int, bytes]] = ()) -> None:
        """`pictures`: for each its first position, the position behind its last, and a digest of what it is."""
        self._hashes: list[bytes] = []
        self._parent = blake3.blake3(b"" if salt is None else b"\x01" + salt.encode()).digest()
        self._pictures = pictures

    def up_to(self, token_ids: npt.NDArray[np.int64], num_tokens: int) -> list[bytes]:
        """The hashes of all full blocks of the first `num_tokens` tokens. Those of earlier calls are not computed again."""
        for number in range(len(self._hashes), num_tokens // BLOCK_TOKENS):
            start, end = number * BLOCK_TOKENS, (number + 1) * BLOCK_TOKENS
            hasher = blake3.blake3(self._parent)
            hasher.update(np.ascontiguousarray(token_ids[start:end]).tobytes())
            for first, behind, digest in self._pictures:
                if first < end and behind > start:
                    hasher.update((first - start).to_bytes(8, "little", signed=True) + digest)
            self._parent = hasher.digest()
            self._hashes.append(self._parent)
        return self._hashes[: num_tokens // BLOCK_TOKENS]

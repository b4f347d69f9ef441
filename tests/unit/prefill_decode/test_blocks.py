import random

import numpy as np
import pytest

from triton_renderer.prefill_decode.blocks import BLOCK_TOKENS, NULL_BLOCK, BlockHashes, BlockPool

TOKENS = np.arange(1000, dtype=np.int64)


def test_the_null_block_is_never_given_out() -> None:
    pool = BlockPool(9)
    assert NULL_BLOCK not in pool.allocate(8)
    assert pool.num_unused == 0


def test_a_block_of_two_users_is_free_when_both_have_left() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.share(blocks)
    pool.release(blocks)
    assert pool.num_unused == 1
    pool.check_integrity([blocks])
    pool.release(blocks)
    assert pool.num_unused == 3
    pool.check_integrity([])


def test_cached_blocks_go_last_and_among_them_the_end_of_a_sequence_before_its_beginning() -> None:
    pool = BlockPool(6)
    first, second, third = pool.allocate(3)
    pool.publish(first, b"1")
    pool.publish(second, b"2")
    pool.release([first, second, third])
    assert pool.allocate(3)[0] == third
    assert pool.find([b"1", b"2"]) == [first, second]
    assert pool.allocate(1) == [second]
    assert pool.find([b"1", b"2"]) == [first]


def test_found_blocks_are_shared_while_unused() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.publish(blocks[0], b"1")
    pool.release(blocks)
    found = pool.find([b"1", b"2"])
    pool.share(found)
    assert pool.num_unused == 1
    pool.check_integrity([found])


def test_two_blocks_with_the_same_content_are_found_as_one() -> None:
    pool = BlockPool(3)
    one, two = pool.allocate(2)
    pool.publish(one, b"1")
    pool.publish(two, b"1")
    assert pool.find([b"1"]) == [one]
    pool.release([two])
    pool.check_integrity([[one]])


@pytest.mark.parametrize("wrong", [[[1]], [[1, 2], [2]], [[3], [1, 2]]])
def test_books_that_do_not_agree_are_noticed(wrong: list[list[int]]) -> None:
    pool = BlockPool(5)
    assert pool.allocate(2) == [1, 2]
    with pytest.raises(RuntimeError, match="block"):
        pool.check_integrity(wrong)


def test_random_use_keeps_the_books() -> None:
    rng = random.Random(0)
    pool, tables = BlockPool(20), []
    for _ in range(2000):
        found = pool.find([rng.randrange(8).to_bytes(1, "little")])
        if rng.random() < 0.5 and pool.num_unused >= 3:
            pool.share(found)
            table = found + pool.allocate(2)
            pool.publish(table[-1], rng.randrange(8).to_bytes(1, "little"))
            tables.append(table)
        elif tables:
            pool.release(tables.pop(rng.randrange(len(tables))))
        pool.check_integrity(tables)


def test_a_hash_covers_everything_before_it() -> None:
    other = TOKENS.copy()
    other[3] = 999
    one, two = BlockHashes(None).up_to(TOKENS, 64), BlockHashes(None).up_to(other, 64)
    assert len(one) == 64 // BLOCK_TOKENS
    assert not set(one) & set(two)
    assert len({*one, *two}) == len(one) + len(two)
    assert {len(block_hash) for block_hash in one} == {32}


def test_hashes_do_not_depend_on_how_they_were_asked_for() -> None:
    hashes = BlockHashes("salt", [(5, 40, b"picture")])
    parts = [hashes.up_to(TOKENS, end) for end in (3, 17, 40, 70)]
    assert [len(part) for part in parts] == [0, 1, 2, 4]
    assert parts[-1] == BlockHashes("salt", [(5, 40, b"picture")]).up_to(TOKENS, 70)


def test_a_picture_changes_the_hashes_from_its_first_token_on() -> None:
    plain = BlockHashes(None).up_to(TOKENS, 96)
    pictured = BlockHashes(None, [(20, 50, b"a")]).up_to(TOKENS, 96)
    assert [one == other for one, other in zip(plain, pictured, strict=True)] == [True, False, False, False, False, False]

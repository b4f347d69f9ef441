"""The state between two calls of the streaming derender routes, which the caller carries: the types of its parts.

Whoever goes on from such a state checks it first, strictly: it has been out of our hands. What passes the check may be
nonsense, but never more than type and range allow, so it cannot make anything raise.
"""

from typing import Annotated, Any, Self, TypeVar

from pydantic import FailFast, Field, Strict, TypeAdapter, ValidationError

from triton_renderer.protocol.base import in_words

Checked = TypeVar("Checked")

MAX_TEXT = 2**22
"""Characters of one text that is held back: more than any model writes."""

Text = Annotated[str, Strict(), Field(max_length=MAX_TEXT)]
Texts = Annotated[list[Text], Strict(), FailFast(), Field(max_length=MAX_TEXT)]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=0, lt=2**53)]
"""A number that JSON keeps exactly in every language."""
Seed = Annotated[str, Strict(), Field(max_length=64)]
"""A random text that ids are made from."""
PartOfCharacter = Annotated[list[Annotated[int, Strict(), Field(ge=0, le=255)]], Strict(), Field(max_length=3)]
"""The bytes of a character that is not complete."""


class MisfittingState(ValueError):
    """What a client sent back is no state. `path` is the place in it, dotted; empty for the whole."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path

    @classmethod
    def of(cls, error: ValidationError) -> Self:
        """The first complaint of pydantic."""
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return cls(in_words(first), ".".join(map(str, first["loc"])))

    def within(self, part: str) -> Self:
        """The same, where the state is a part of another one."""
        return type(self)(self.reason, f"{part}.{self.path}" if self.path else part)


def checked(states: TypeAdapter[Checked], state: Any) -> Checked:
    """`state`, where it is one of `states`. Raises MisfittingState where not."""
    try:
        return states.validate_python(state)
    except ValidationError as error:
        raise MisfittingState.of(error) from error

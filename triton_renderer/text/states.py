"""The state between two calls of the streaming derender routes, which the caller carries: the types of its parts.

Whoever goes on from such a state checks it first, strictly: it has been out of our hands. What passes the check may be
nonsense, but never more than type and range allow, so it cannot make anything raise.
"""

from typing import Annotated

from pydantic import Field, Strict

MAX_TEXT = 2**22
"""Characters of one text that is held back: more than any model writes."""

Text = Annotated[str, Strict(), Field(max_length=MAX_TEXT)]
Texts = Annotated[list[Text], Strict(), Field(max_length=MAX_TEXT)]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=0, lt=2**53)]
"""A number that JSON keeps exactly in every language."""
PartOfCharacter = Annotated[list[Annotated[int, Strict(), Field(ge=0, le=255)]], Strict(), Field(max_length=3)]
"""The bytes of a character that is not complete."""

"""How the answers to a stream's calls are kept small."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.golden.streams import lengthened, shortened

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text("ab=", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "0"]), inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_shortened_answers_are_the_same_when_lengthened(answers: list[Any]) -> None:
    assert lengthened(shortened(answers)) == answers

from triton_renderer.prefill_decode.stopping import StopChecker
from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.settings import BUNDLED_MODEL
from triton_renderer.text.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(str(BUNDLED_MODEL))
EOS = TOKENIZER.eos_token_id


def checker(max_tokens: int = 100, want_text: bool = True, **params: object) -> StopChecker:
    return StopChecker(
        SamplingParams.model_validate(params),
        max_tokens,
        eos_token_ids={EOS},
        tokenizer=TOKENIZER,
        prompt_tail=[],
        want_text=want_text,
    )


def run(stop: StopChecker, text: str) -> tuple[int, str | None, object, str]:
    """Tokens taken, finish reason, stop reason, and the text."""
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    for count, token_id in enumerate(ids, start=1):
        reason = stop.push(token_id)
        if reason[0]:
            return count, *reason, stop.take_text()
    return len(ids), None, None, stop.take_text()


def test_end_of_sequence_has_no_stop_reason() -> None:
    assert checker().push(EOS) == ("stop", None)


def test_ignored_end_of_sequence_goes_on() -> None:
    assert checker(ignore_eos=True).push(EOS) == (None, None)


def test_stop_token_names_itself_also_with_ignore_eos() -> None:
    assert checker(ignore_eos=True, stop_token_ids=[EOS]).push(EOS) == ("stop", EOS)


def test_stop_string_ends_at_the_token_that_completes_it() -> None:
    count, finish, reason, text = run(checker(stop=["END"]), "aENDbcdef")
    assert (finish, reason, text) == ("stop", "END", "a")
    assert count < len(TOKENIZER.encode("aENDbcdef", add_special_tokens=False))
    assert run(checker(stop=["END"], include_stop_str_in_output=True), "aENDbc")[3] == "aEND"


def test_text_that_only_begins_like_a_stop_string_is_delivered_in_the_end() -> None:
    tokens = len(TOKENIZER.encode("aEND", add_special_tokens=False))
    assert run(checker(max_tokens=tokens, stop=["ENDX"]), "aEND") == (tokens, "length", None, "aEND")


def test_min_tokens_puts_stop_strings_off() -> None:
    assert run(checker(stop=["a"], min_tokens=3), "aaa zzz a")[1] == "stop"
    assert run(checker(stop=["q"], min_tokens=50), "q zzz")[1] is None


def test_limit_is_length() -> None:
    assert run(checker(max_tokens=2), "red red red red")[:3] == (2, "length", None)


def test_what_is_held_back_is_let_go_where_the_output_ends_from_outside() -> None:
    stop = checker(stop=["}X"])
    for token_id in TOKENIZER.encode("{}"):
        stop.push(token_id)
    stop.finish()
    assert stop.take_text() == "{}"

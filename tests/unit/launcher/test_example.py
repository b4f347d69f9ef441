import base64
import io
import json
import shlex

from PIL import Image

from triton_renderer.launcher.example import example_curl, picture
from triton_renderer.settings import load_settings

URL = "http://127.0.0.1:9000"


def body_of(curl: str) -> dict[str, object]:
    words = shlex.split(curl)
    body: dict[str, object] = json.loads(words[words.index("-d") + 1])
    return body


def test_the_bundled_model_is_asked_about_a_picture() -> None:
    curl = example_curl(load_settings(), URL)
    assert "\n" not in curl
    assert "image_url" in str(body_of(curl)["messages"])


def test_any_other_model_is_asked_in_text() -> None:
    body = body_of(example_curl(load_settings(model="some/model", served_model_name="it's mine"), URL))
    assert body["model"] == "it's mine"
    assert "image_url" not in str(body["messages"])


def test_a_render_server_is_asked_for_tokens() -> None:
    assert f"{URL}/v1/chat/completions/render " in example_curl(load_settings(role="render"), URL)
    assert f"{URL}/v1/chat/completions " in example_curl(load_settings(), URL)


def test_the_key_is_asked_for_but_not_shown() -> None:
    curl = example_curl(load_settings(api_key="secret"), URL)
    assert '"Authorization: Bearer $API_KEY"' in curl
    assert "secret" not in curl


def test_the_picture_is_short_and_shows_a_red_circle_on_white() -> None:
    url = picture()
    assert len(url) < 400
    image = Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))).convert("RGB")
    assert image.size == (96, 96)
    assert image.getpixel((48, 48)) == (220, 30, 30)
    assert image.getpixel((3, 3)) == (255, 255, 255)

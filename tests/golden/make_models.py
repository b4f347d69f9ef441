"""Writes `models/`: what a render server needs of a model, a folder each; no weights.

    python -m tests.golden.make_models TOKENIZERS

TOKENIZERS holds a folder for each of `REAL` and `OF_THE_FORM` with the tokenizer.json and tokenizer_config.json of the model.
The tokenizers of Qwen3 and SmolLM2 (Apache-2.0) and of DeepSeek-V3 (MIT) are stored as they are, compressed. Those of Llama 3.1
and Gemma 3 come under terms of their own, so that here only their form is kept, that is normalizer, pre-tokenizer, decoder, names
of special tokens and the shape of the prompt; the pieces are learnt anew from this project's own texts.

Run by hand, once: the recordings hold for the folders as they are in the repository.
"""

import json
import lzma
import sys
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

MODELS = Path(__file__).with_name("models")
PROJECT = MODELS.parent.parent.parent

REAL = ("qwen3", "smollm2", "deepseek_v3")
NUM_PIECES = 6000
LANGUAGES = (
    "Der Fluß fließt schnell über Kiesel. La rivière coule sous le vieux pont. El niño pequeño canta. Привет, как дела сегодня?",
    "你好，今天天气很好。我们去公园散步吧。こんにちは、世界。ありがとうございます。안녕하세요 세계.",
    "مرحبا بالعالم. שלום עולם. नमस्ते दुनिया. สวัสดีชาวโลก. Γειά σου Κόσμε. 🙂👍🏽👨‍👩‍👧 1234567890 3.14159 €5 ½",
)

LLAMA_TOKENS = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
    "<|eot_id|>", "<|python_tag|>",
)  # fmt: skip
GEMMA_TOKENS = (
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
)
NOT_SPECIAL = (
    "<mask>",
    *("\n" * n for n in range(1, 6)),
    *("▁" * n for n in range(2, 9)),
    "\t",
    "\t\t",
    "<table>",
    "</table>",
    "<b>",
    "</b>",
)

DECODER: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 32, "max_position_embeddings": 4096, "tie_word_embeddings": True, "dtype": "float32",
}  # fmt: skip
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **DECODER}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **DECODER, "vocab_size": 151936}
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", **DECODER, "sliding_window": 512}

QWEN3_VL: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "text_config": {
        "model_type": "qwen3_vl_text", **DECODER, "vocab_size": 151936,
        "rope_parameters": {"rope_theta": 5e6, "rope_type": "default", "mrope_section": [8, 4, 4], "mrope_interleaved": True},
    },
    "vision_config": {
        "model_type": "qwen3_vl", "depth": 4, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 64,
        "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 256,
        "deepstack_visual_indexes": [0, 1, 2],
    },
    "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652, "vision_end_token_id": 151653,
    "tie_word_embeddings": True, "dtype": "float32",
}  # fmt: skip
_PIXELS: dict[str, Any] = {
    "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    "processor_class": "Qwen3VLProcessor",
}  # fmt: skip
IMAGES = _PIXELS | {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "size": {"shortest_edge": 4096, "longest_edge": 262144},
}
VIDEOS = _PIXELS | {"video_processor_type": "Qwen3VLVideoProcessor", "size": {"shortest_edge": 4096, "longest_edge": 786432}}

TEMPLATES = {
    "llama": """\
{%- if strftime_now is defined and date_string is not defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{{- bos_token }}
{%- if messages[0]["role"] == "system" %}{%- set system = messages[0]["content"] | trim %}{%- set rest = messages[1:] %}
{%- else %}{%- set system = "" %}{%- set rest = messages %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none and tools %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" + system + "<|eot_id|>" }}
{%- for message in rest %}
{%- if message.role == "tool" or message.role == "ipython" %}
{{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
{%- if message.content is mapping %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}{{- "<|eot_id|>" }}
{%- elif message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{- raise_exception("This model only supports single tool-calls at once!") }}{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" }}
{{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}<|eot_id|>" }}
{%- else %}
{{- "<|start_header_id|>" + message.role + "<|end_header_id|>\\n\\n" }}
{%- if tools and loop.first %}{%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{%- endif %}
{{- message.content | trim + "<|eot_id|>" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" }}{%- endif %}
""",
    "gemma": """\
{{ bos_token }}
{%- if messages[0].role == "system" -%}
{%- if messages[0].content is string -%}{%- set prefix = messages[0].content + "\\n\\n" -%}
{%- else -%}{%- set prefix = messages[0].content[0].text + "\\n\\n" -%}{%- endif -%}
{%- set rest = messages[1:] -%}
{%- else -%}{%- set prefix = "" -%}{%- set rest = messages -%}{%- endif -%}
{%- for message in rest -%}
{%- if (message.role == "user") != (loop.index0 % 2 == 0) -%}
{{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
{%- endif -%}
{{ "<start_of_turn>" + ("model" if message.role == "assistant" else message.role) + "\\n" + (prefix if loop.first else "") }}
{%- if message.content is string -%}{{ message.content | trim }}
{%- elif message.content is iterable -%}
{%- for item in message.content -%}
{%- if item.type == "image" -%}{{ "<start_of_image>" }}{%- elif item.type == "text" -%}{{ item.text | trim }}{%- endif -%}
{%- endfor -%}
{%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
{{ "<end_of_turn>\\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<start_of_turn>model\\n" }}{%- endif -%}
""",
    "qwen3-vl": """\
{%- macro text(c) %}{%- if c is string %}{{- c }}{%- else %}{%- for p in c %}
{%- if p.type == 'image' or 'image' in p or 'image_url' in p %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif p.type == 'video' or 'video' in p %}<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in p %}{{- p.text }}{%- endif %}{%- endfor %}{%- endif %}{%- endmacro %}
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- text(messages[0].content) + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n<tools>' }}{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}{{- '\\n</tools><|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'system' %}{%- if not (tools and loop.first) %}{{- '<|im_start|>system\\n' + text(m.content) + '<|im_end|>\\n' }}{%- endif %}
{%- elif m.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>\\n' + text(m.content) + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' }}{%- if m.content %}{{- text(m.content) }}{%- endif %}
{%- for t in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + t.function.name + '", "arguments": ' }}
{{- t.function.arguments if t.function.arguments is string else t.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}
""",
}
"""Those of the models whose own are not kept, or not to be had."""


def main(tokenizers: Path) -> None:
    """Writes the folders."""
    for name in REAL:
        source = (tokenizers / name / "tokenizer.json").read_bytes()
        _write(name, "tokenizer.json.xz", lzma.compress(source, preset=9 | lzma.PRESET_EXTREME))
    _pieces("llama", _llama())
    _pieces("gemma", _gemma())
    smollm2 = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
    llama = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|finetune_right_pad_id|>"}
    gemma = {"bos_token": "<bos>", "eos_token": "<end_of_turn>", "pad_token": "<pad>", "unk_token": "<unk>"}
    deepseek = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>", "pad_token": "<｜▁pad▁｜>"}
    qwen3 = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    _model("qwen3", QWEN3, _fast(qwen3), _template_of(tokenizers / "qwen3"), {
        "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [151645, 151643], "pad_token_id": 151643,
        "bos_token_id": 151643,
    })  # fmt: skip
    _model("smollm2", LLAMA | {"vocab_size": 49152}, _fast(smollm2), _template_of(tokenizers / "smollm2"))
    _model("deepseek_v3", LLAMA | {"vocab_size": 129280}, _fast(deepseek), _template_of(tokenizers / "deepseek_v3"), {
        "do_sample": True, "temperature": 0.6, "top_p": 0.95, "bos_token_id": 0, "eos_token_id": 1,
    })  # fmt: skip
    _model("llama", LLAMA | {"vocab_size": 8192}, _fast(llama), TEMPLATES["llama"], {
        "do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 5, 6], "bos_token_id": 0,
    })  # fmt: skip
    _model("gemma", GEMMA3 | {"vocab_size": 8192}, _fast(gemma), TEMPLATES["gemma"], {
        "do_sample": True, "top_k": 64, "top_p": 0.95, "eos_token_id": [1, 5], "bos_token_id": 2, "max_new_tokens": 700,
        "repetition_penalty": 1.05,
    })  # fmt: skip
    _model("qwen3-vl", QWEN3_VL, _fast(qwen3), TEMPLATES["qwen3-vl"], {
        "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "eos_token_id": [151645, 151643],
    })  # fmt: skip
    _write("qwen3-vl", "preprocessor_config.json", _json(IMAGES))
    _write("qwen3-vl", "video_preprocessor_config.json", _json(VIDEOS))


def _model(name: str, config: Any, tokenizer_config: Any, template: str, generation_config: Any = None) -> None:
    _write(name, "config.json", _json(config))
    _write(name, "tokenizer_config.json", _json(tokenizer_config))
    _write(name, "chat_template.jinja", template.encode())
    if generation_config is not None:
        _write(name, "generation_config.json", _json(generation_config))


def _fast(names: dict[str, Any]) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
        **names,
    }


def _template_of(folder: Path) -> str:
    """A model's own template, from its configuration or a file of its own."""
    own = folder / "chat_template.jinja"
    if own.exists():
        return own.read_text(encoding="utf-8")
    return str(json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"])


def _llama() -> dict[str, Any]:
    """Byte-level BPE that begins a text with its own token; numbers in groups of up to three digits."""
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_regex(words), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_PIECES, special_tokens=list(LLAMA_TOKENS), initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    return document | {"post_processor": _begins_with("<|begin_of_text|>", 0)}


def _gemma() -> dict[str, Any]:
    """BPE over characters with a mark for spaces; what no piece covers becomes bytes. Some pieces are added tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # for learning only: words, not whole texts
    trainer = trainers.BpeTrainer(vocab_size=NUM_PIECES, special_tokens=list(GEMMA_TOKENS), show_progress=False)
    tokenizer.train_from_iterator(_texts()[:-1], trainer)
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    learnt = [piece for piece in document["model"]["vocab"] if piece not in GEMMA_TOKENS and piece not in NOT_SPECIAL]
    pieces = [*GEMMA_TOKENS, *NOT_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *learnt]
    document["model"] |= {"vocab": {piece: number for number, piece in enumerate(pieces)}, "byte_fallback": True}
    added = [(token, True) for token in GEMMA_TOKENS] + [(token, False) for token in NOT_SPECIAL]
    return document | {
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": special,
            }
            for number, (token, special) in enumerate(added)
        ],
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "post_processor": _begins_with("<bos>", 2),
    }


def _begins_with(token: str, token_id: int) -> dict[str, Any]:
    single = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*single, {"SpecialToken": {"id": token, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }


def _texts() -> list[str]:
    """This project's documentation and library, and some other scripts."""
    files = [PROJECT / "README.md", *sorted((PROJECT / "triton_renderer").rglob("*.py"))]
    return [path.read_text(encoding="utf-8") for path in files] + [line for line in LANGUAGES for _ in range(3)]


def _regex(pattern: str) -> Any:
    from tokenizers import Regex  # noqa: PLC0415

    return Regex(pattern)


def _pieces(name: str, document: dict[str, Any]) -> None:
    Tokenizer.from_str(json.dumps(document))
    _write(name, "tokenizer.json.xz", lzma.compress(_json(document), preset=9))


def _json(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, indent=1).encode() + b"\n"


def _write(name: str, file: str, content: bytes) -> None:
    folder = MODELS / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

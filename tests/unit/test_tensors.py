"""The tensor contract and the model repository say the same."""

from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from triton_renderer.tensors import ENSEMBLES, MODELS, ModelSpec, concatenate, split

REPOSITORY = Path(__file__).parents[2] / "model_repository"
DTYPES = {"BYTES": "TYPE_STRING", "UINT8": "TYPE_UINT8", "INT64": "TYPE_INT64"}


def config(name: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse((REPOSITORY / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


@pytest.mark.parametrize(("name", "spec"), (MODELS | ENSEMBLES).items())
def test_config_has_the_tensors_of_the_contract(name: str, spec: ModelSpec) -> None:
    parsed = config(name)
    data_type = model_config_pb2.DataType.Name
    assert parsed.name == name
    assert parsed.max_batch_size == 0
    assert [(t.name, data_type(t.data_type), tuple(t.dims), t.optional) for t in parsed.input] == [
        (t.name, DTYPES[t.dtype], t.dims, t.optional) for t in spec.inputs
    ]
    assert [(t.name, data_type(t.data_type), tuple(t.dims)) for t in parsed.output] == [
        (t.name, DTYPES[t.dtype], t.dims) for t in spec.outputs
    ]


@pytest.mark.parametrize("name", MODELS)
def test_models_are_decoupled_as_the_contract_says(name: str) -> None:
    assert config(name).model_transaction_policy.decoupled == MODELS[name].decoupled


@pytest.mark.parametrize("name", ENSEMBLES)
def test_ensemble_steps_take_and_give_all_tensors_under_their_own_names(name: str) -> None:
    for step in config(name).ensemble_scheduling.step:
        spec = MODELS[step.model_name]
        assert dict(step.input_map) == {tensor.name: tensor.name for tensor in spec.inputs}
        assert dict(step.output_map) == {tensor.name: tensor.name for tensor in spec.outputs}


def test_only_the_gpu_stages_may_run_on_a_gpu() -> None:
    kind = model_config_pb2.ModelInstanceGroup.Kind.Name
    assert {name: [kind(group.kind) for group in config(name).instance_group] for name in MODELS} == {
        "render": ["KIND_CPU"],
        "encode": [],
        "prefill_decode": [],
        "derender": ["KIND_CPU"],
    }


@pytest.mark.parametrize("parts", [[], [b""], [b"abc", b"", b"de"]])
def test_split_undoes_concatenate(parts: list[bytes]) -> None:
    assert [bytes(part) for part in split(*concatenate(parts))] == parts


@pytest.mark.parametrize("offsets", [[1, 3], [0, 2], [0, 4], [0, 2, 1, 3], [-1, 3], []])
def test_offsets_that_do_not_fit_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets"):
        split(np.zeros(3, np.uint8), np.array(offsets, np.int64))

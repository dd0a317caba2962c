"""``ray.data.llm`` in programs: rows through engines, what fails, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.rayapi.llm.engine import Model
from raysim.rayapi.llm.texts import said
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.llm.config import ColdStart
from tests.unit.rayapi.llm_parts import MODEL, played


def test_a_processor_takes_rows_through_an_engine() -> None:
    def main() -> list[dict[str, Any]]:
        import ray
        from ray.data.llm import build_processor, vLLMEngineProcessorConfig

        config = vLLMEngineProcessorConfig(
            model_source=MODEL, accelerator_type="H100", concurrency=1, batch_size=16
        )
        made = build_processor(
            config,
            preprocess=lambda row: {
                "messages": [{"role": "system", "content": "Be brief. " * 40},
                             {"role": "user", "content": f"{row['id']}?"}],
                "sampling_params": {"max_tokens": 30},
            },
            postprocess=lambda row: {
                k: row[k] for k in ("id", "generated_text", "num_input_tokens",
                                    "num_generated_tokens", "time_taken_llm")
            },
        )  # fmt: skip
        found: list[dict[str, Any]] = made(ray.data.range(64)).take_all()
        return found

    rows = played(main)
    assert sorted(row["id"] for row in rows) == list(range(64))
    assert {row["generated_text"] for row in rows} == {said(30)}
    assert {row["num_generated_tokens"] for row in rows} == {30}
    assert all(100 < row["num_input_tokens"] < 130 for row in rows)
    # batches of sixteen, some at a time, in one engine: thirty iterations of some 7 ms each
    assert 0.2 < min(row["time_taken_llm"] for row in rows) < 0.5


def test_engines_side_by_side_share_the_rows() -> None:
    def main(concurrency: int) -> float:
        import time

        import ray
        from ray.data.llm import build_processor, vLLMEngineProcessorConfig

        config = vLLMEngineProcessorConfig(
            model_source=MODEL, concurrency=(concurrency, concurrency), batch_size=16,
            chat_template_stage=False,
            engine_kwargs={"max_num_seqs": 64, "max_model_len": 4096},
        )  # fmt: skip
        made = build_processor(
            config,
            preprocess=lambda _: {
                "prompt": "x" * 400, "sampling_params": {"max_tokens": 300, "ignore_eos": True},
            },
            postprocess=lambda row: {"n": row["num_generated_tokens"]},
        )  # fmt: skip
        began_s = time.perf_counter()
        assert made(ray.data.range(2048, override_num_blocks=128)).sum("n") == 2048 * 300
        return time.perf_counter() - began_s

    cold_s = ColdStart().seconds(Model(MODEL, {}).decoder)
    one, four = (played(lambda n=n: main(n)) - cold_s for n in (1, 4))  # type: ignore[misc]
    assert 2.5 < one / four < 4.5


def test_a_row_that_fails_may_stay_and_say_why() -> None:
    def main() -> list[dict[str, Any]]:
        import ray
        from ray.data.llm import build_processor, vLLMEngineProcessorConfig

        config = vLLMEngineProcessorConfig(
            model_source=MODEL, should_continue_on_error=True, chat_template_stage=False,
            engine_kwargs={"max_model_len": 100},
        )  # fmt: skip
        made = build_processor(
            config,
            preprocess=lambda row: {
                "prompt": "x" * 400 * int(row["id"] + 1) , "sampling_params": {"max_tokens": 8},
            },
            postprocess=lambda row: {"id": row["id"], "text": row["generated_text"]},
        )  # fmt: skip
        found: list[dict[str, Any]] = made(
            ray.data.range(3).map(lambda row: {"id": row["id"] - 1})
        ).take_all()
        return found

    rows = {row["id"]: row for row in played(main)}
    assert rows[-1]["text"] == said(8)
    assert rows[-1]["__inference_error__"] == ""
    assert "longer than the maximum model length of 100" in rows[1]["__inference_error__"]


def test_stages_may_be_left_out_and_are_refused_by_name() -> None:
    def main() -> Any:
        from ray.data.llm import build_processor, vLLMEngineProcessorConfig

        bare = vLLMEngineProcessorConfig(
            model_source=MODEL, chat_template_stage=False, tokenize_stage={"enabled": False},
            detokenize_stage=False,
        )  # fmt: skip
        names = build_processor(bare).list_stage_names()
        refused = []
        for more in ({"task_type": "embed"}, {"prepare_multimodal_stage": True}):
            with pytest.raises(NotEmulatedError) as caught:
                build_processor(vLLMEngineProcessorConfig(model_source=MODEL, **more))
            refused.append(caught.value.name)
        return names, refused

    assert played(main) == (
        ["vLLMEngineStage"],
        ["ray.data.llm with task_type='embed'", "ray.data.llm with prepare_multimodal_stage"],
    )

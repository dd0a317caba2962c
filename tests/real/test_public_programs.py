"""What public training scripts do that once failed here, each the smallest that did."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.modeling_utils")  # now, so that it has torch's own functions

from torch import nn  # noqa: E402

from raysim.rayapi.shapes import steps  # noqa: E402
from raysim.rayapi.shapes.here import steps_here  # noqa: E402
from raysim.tracing.module import trace  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402
from tests.real.training_script_parts import fit_value, one_layer_llama  # noqa: E402


def test_flash_attention_is_given_no_mask() -> None:
    """Of tensor-parallel ranks whose embeddings are parts, a mask would have the parts' length."""

    def loop(_: Any) -> Any:
        model = one_layer_llama("flash_attention_2")
        given: list[Any] = []
        model.model.layers[0].self_attn.register_forward_pre_hook(
            lambda _m, _a, kwargs: given.append(kwargs["attention_mask"]), with_kwargs=True
        )
        for ids in (torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, 9, dtype=torch.long)):
            mask = torch.ones_like(ids)
            mask[:, 8:] = 0
            there = {"input_ids": ids, "attention_mask": mask, "labels": ids}
            model(**{name: t.cuda() for name, t in there.items()}).loss.backward()
        return model.config._attn_implementation, [getattr(m, "ndim", m) for m in given]

    # Of ones alone transformers makes none, else it is that of padding alone.
    assert fit_value(loop, workers=1) == ("flash_attention_2", [None, 2])


def test_transformers_4_s_ways_with_devices_and_masks() -> None:
    """Autocast of a tensor's device, in rotary embeddings; masks by ``vmap``, in every model."""

    def loop(_: Any) -> Any:
        x = torch.zeros(4, 8, device="cuda")
        model = nn.Linear(8, 8).cuda()
        with torch.autocast(device_type=x.device.type, enabled=False):
            model(x).sum().backward()

        def mask(row: Any, column: Any) -> Any:
            return row.new_ones((), dtype=torch.bool) & (column <= row)

        index = torch.arange(8, device="cuda")
        whole = torch.vmap(torch.vmap(mask, in_dims=(None, 0)), in_dims=(0, None))
        return [tuple(whole(index, index).shape) for _ in range(2)]

    assert fit_value(loop, workers=1) == [(8, 8), (8, 8)]


def test_a_distributed_checkpoint_takes_what_has_a_state(tmp_path: Path) -> None:
    """``dcp.save({"model": model})``, as torch asks such objects for their ``state_dict``."""
    import torch.distributed.checkpoint as dcp

    def loop(_: Any) -> Any:
        import ray.train

        model = nn.Linear(64, 64, bias=False).cuda()
        model.hook = lambda: None  # which could not be pickled
        dcp.save({"model": model, "step": 3}, checkpoint_id=tmp_path)
        state = {"model": model, "step": 0}
        weight = model.weight
        dcp.load(state, checkpoint_id=tmp_path)
        ray.train.report({})
        return state["model"] is model, model.weight is weight, state["step"]

    assert fit_value(loop, workers=2) == (True, True, 3)


def test_collectives_take_torch_s_names_and_give_futures() -> None:
    """As nanochat's optimizer calls them."""
    import torch.distributed as dist

    def loop(_: Any) -> Any:
        mine, whole = torch.zeros(4, device="cuda"), torch.zeros(8, device="cuda")
        work = dist.reduce_scatter_tensor(mine, whole, op=dist.ReduceOp.AVG, async_op=True)
        work.get_future().wait()
        dist.all_gather_into_tensor(output_tensor=whole, input_tensor=mine)
        dist.new_group(backend="gloo").monitored_barrier()  # Lightning's ``rank_zero_first``
        return tuple(whole.shape)

    assert fit_value(loop, workers=2) == (8,)


class Padded(nn.Module):
    """Tokens of any length, each attending to all."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 512)

    def forward(self, ids: Any) -> Any:
        """Logits of each."""
        return self.head(self.block(self.embed(ids)))


def padded(config: dict[str, Any]) -> tuple[float, int]:
    """Steps over batches of some lengths: what the last one takes, and its memory."""
    model = Padded().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    begin_s = 0.0
    for length in config["lengths"]:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        begin_s = time.perf_counter()
        ids = torch.zeros(64, length, dtype=torch.long, device="cuda")
        logits = model(ids)
        assert logits.shape == (64, length, 512)
        nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    return time.perf_counter() - begin_s, torch.cuda.max_memory_allocated()


@pytest.mark.parametrize(("last", "traced"), [(504, 5), (800, 6)], ids=["between", "longer"])
def test_of_many_lengths_those_between_are_not_traced(
    last: int, traced: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need what their own trace says; what is longer than all before is traced."""
    traces: list[Any] = []
    real = steps.trace
    monkeypatch.setattr(steps, "trace", lambda *a, **k: traces.append(a) or real(*a, **k))
    lengths = [320, 640, 480, 400, 560, 520, 600, last]
    found = fit_value(padded, workers=1, lengths=lengths)
    assert len(traces) == traced
    alone = fit_value(padded, workers=1, lengths=[last] * 3)
    assert found == pytest.approx(alone, rel=0.02)


def test_micro_batches_of_several_lengths_take_their_mean() -> None:
    """And not as many times the last one's."""

    def loop(config: dict[str, Any]) -> float:
        model = Padded().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        begin_s = 0.0
        for lengths in config["steps"]:
            torch.cuda.synchronize()
            begin_s = time.perf_counter()
            for length in lengths:
                ids = torch.zeros(64, length, dtype=torch.long, device="cuda")
                model(ids).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return time.perf_counter() - begin_s

    known = [[n, n] for n in (320, 640, 480, 400, 560)]
    both = [fit_value(loop, workers=1, steps=[*known, [n, n]]) for n in (360, 600)]
    mixed = fit_value(loop, workers=1, steps=[*known, [600, 360]])
    assert mixed == pytest.approx(sum(both) / 2, rel=0.01)
    assert both[0] < 0.8 * mixed


def test_a_package_that_fails_to_be_imported_may_have_namespaces(tmp_path: Path) -> None:
    """Which find no parent afterwards (grain, without what it needs)."""
    space = tmp_path / "broken" / "space"
    space.mkdir(parents=True)
    (space / "part.py").write_text("")
    (space.parent / "__init__.py").write_text("import broken.space.part\nraise ImportError\n")
    script = tmp_path / "train.py"
    script.write_text("try:\n    import broken\nexcept ImportError:\n    print('went on')\n")
    assert launched("python", str(script))[0] == ["went on"]


def test_what_stands_for_a_package_goes_to_tasks_by_its_name(tmp_path: Path) -> None:
    """A trainable that uses ``torchvision.transforms`` (Tune's cifar10_pytorch)."""
    script = tmp_path / "tune.py"
    script.write_text(
        "import torchvision.transforms as transforms\nfrom ray import cloudpickle\n"
        "print(cloudpickle.loads(cloudpickle.dumps(transforms)) is transforms)\n"
    )
    assert launched("python", str(script))[0] == ["True"]


def test_a_default_device_is_each_rank_s_own() -> None:
    """``torch.set_default_device("cuda")``, which torch keeps below all other modes."""

    def loop(_: Any) -> Any:
        torch.set_default_device("cuda")
        found = [torch.get_default_device(), torch.zeros(2, dtype=torch.long).device]
        found += [torch.randn(2).device, next(nn.Linear(2, 2).parameters()).device]
        with torch.device("cpu"):
            found.append(torch.randn(2).device)
        return [d.type for d in found]

    assert fit_value(loop, workers=2) == ["cuda"] * 4 + ["cpu"]


def test_events_of_streams_and_the_old_profiler() -> None:
    """Which ended the process here: its tracer of Python takes greenlets for threads."""

    def loop(_: Any) -> Any:
        model = nn.Linear(8, 8).cuda()
        with torch.autograd.profiler.profile(with_stack=True) as watched:
            model(torch.zeros(2, 8, device="cuda")).sum().backward()
        event = torch.cuda.current_stream().record_event()
        event.synchronize()
        return event.query(), len(watched.key_averages(group_by_stack_n=5))

    assert fit_value(loop, workers=1) == (True, 0)


def test_a_loss_is_finite_to_whoever_asks() -> None:
    """``float(loss)`` too; a nan of one's own stays one; numpy's functions are its own (numba)."""

    def loop(_: Any) -> Any:
        import numpy as np

        loss = nn.Linear(8, 8).cuda()(torch.zeros(2, 8, device="cuda")).sum()
        mean = 0.9 * float(loss) + 0.1
        finite = math.isfinite(loss.item()), math.isfinite(float(loss)), not math.isnan(mean)
        return all(finite), math.isnan(float("nan")), isinstance(np.isnan, np.ufunc)

    assert fit_value(loop, workers=1) == (True, True, True)


def test_a_wrapper_s_forward_is_its_call() -> None:
    """``DistributedDataParallel.forward(x)``, as Barlow Twins calls it: gradients were not reduced,
    and a collective within the model was taken for tensor parallelism."""

    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            out = self.layer(x)
            torch.distributed.all_reduce(out)
            return out.sum()

    def loop(_: Any) -> Any:
        model = nn.parallel.DistributedDataParallel(Twins().cuda())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.zeros(4, 64, device="cuda")
        for one in (model, model.forward):
            optimizer.zero_grad()
            one(x).backward()
            optimizer.step()
        return len(steps_here().shared.roles)  # alike

    assert fit_value(loop, workers=2) == 1


def test_a_real_tensor_may_come_pickled() -> None:
    """A picture that an actor with a GPU is sent; torch puts it together below all modes."""
    import pickle

    sent = pickle.dumps(torch.ones(2, 8))

    def loop(_: Any) -> Any:
        found = pickle.loads(sent)
        return found.device.type, tuple(nn.Linear(8, 3).cuda()(found.cuda()).shape)

    assert fit_value(loop, workers=1) == ("cpu", (2, 3))


def test_a_later_pass_asks_a_dataset_for_one_sample() -> None:
    """Epochs of few batches: two of them were made in each, by each rank."""
    from torch.utils.data import DataLoader, Dataset

    asked: list[int] = []

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return 32

        def __getitem__(self, index: int) -> Any:
            asked.append(index)
            return torch.zeros(4), asked[-1]

    def loop(_: Any) -> Any:
        loader = DataLoader(Rows(), batch_size=8)
        return [(len(list(loader)), len(asked)) for _ in range(3)]

    assert fit_value(loop, workers=1) == [(4, 16), (4, 17), (4, 18)]


def test_one_picture_may_be_evaluated() -> None:
    """Of a batch norm's one value: training, torch would refuse it."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval()
    assert trace(model, (torch.zeros(1, 3, 3, 3),)).layers


def test_gradients_of_weights_are_a_backward() -> None:
    """``torch.autograd.grad(loss, weights)``, sample by sample; from the third on it failed."""

    def loop(_: Any) -> Any:
        model = nn.Linear(8, 4).cuda()
        begin = time.time()
        for _step in range(4):
            loss = model(torch.zeros(2, 8, device="cuda")).sum()
            found = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for weight, gradient in zip(model.parameters(), found, strict=True):
                    weight.sub_(gradient)
        return [tuple(t.shape) for t in found], time.time() > begin

    assert fit_value(loop, workers=1) == ([(4, 8), (4,)], True)


def test_a_loss_picks_the_places_of_known_labels() -> None:
    """TRL's KTO: ``nonzero`` of labels, and of what a loss makes of them."""

    def loop(_: Any) -> Any:
        model = nn.Linear(8, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        good = torch.tensor([True, False, True, True]).cuda()
        for _step in range(2):
            out = model(torch.zeros(4, 8, device="cuda"))
            chosen, rejected = (torch.nonzero(m).view(-1) for m in (good, ~good))
            loss = out[chosen].sum() - out.index_select(0, rejected).sum()
            loss.backward()
            optimizer.step()
        return len(chosen), len(rejected)

    assert fit_value(loop, workers=1) == (3, 1)


def test_a_reference_s_own_autocast_counts() -> None:
    """As Accelerate prepares TRL's reference model: it was priced in fp32."""

    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8192, 8192)

        def forward(self, x: Any) -> Any:
            with torch.autocast("cuda", torch.bfloat16):
                return self.layer(x)

    def loop(_: Any) -> Any:
        model, reference = nn.Linear(8192, 8192).cuda(), Casts().cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.zeros(8192, 8192, device="cuda")
        for _step in range(3):
            model(x).sum().backward()
            with torch.no_grad():
                reference(x)
            optimizer.step()
        (found,) = steps_here().shared.beside.values()
        return float(found[1].ns)

    flops = 2.0 * 8192**3
    assert fit_value(loop, workers=1) < 1e9 * flops / 200e12  # an H100's fp32 is 67 TFLOP/s


def test_per_sample_gradients_and_nested_tensors() -> None:
    """torch.func's transforms run a model on shapes; ragged batches are refused by name."""
    from torch.func import functional_call, grad, vmap

    from raysim.rayapi.unsupported import NotEmulatedError

    def loop(_: Any) -> Any:
        model = nn.Linear(8, 4).cuda()
        weights = {k: v.detach() for k, v in model.named_parameters()}

        def loss(weights: Any, x: Any) -> Any:
            return functional_call(model, (weights,), (x[None],)).sum()

        x = torch.zeros(5, 8, device="cuda")
        found = vmap(grad(loss), in_dims=(None, 0))(weights, x)
        with pytest.raises(NotEmulatedError, match="nested"):
            torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], device="cuda")
        return {name: tuple(t.shape) for name, t in found.items()}

    assert fit_value(loop, workers=1) == {"weight": (5, 4, 8), "bias": (5, 4)}


def test_weights_are_made_empty() -> None:
    """``accelerate.init_empty_weights``, as peft has it too: a weight of another's ``__dict__``."""
    accelerate = pytest.importorskip("accelerate")

    def loop(_: Any) -> Any:
        with accelerate.init_empty_weights():
            return str(nn.Linear(8, 4).weight.device), tuple(nn.Linear(8, 4).weight.shape)

    assert fit_value(loop, workers=1)[1] == (4, 8)


def test_a_trained_model_says_token_after_token() -> None:
    """GRPO and its like: each token took a training step's whole forward, and was run anew."""

    def loop(config: Any) -> Any:
        llama = transformers.LlamaConfig(
            hidden_size=1024, intermediate_size=4096, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=8, vocab_size=512,
        )  # fmt: skip
        model = transformers.AutoModelForCausalLM.from_config(llama).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        long = torch.zeros(8, 4096, dtype=torch.long, device="cuda")
        for _step in range(2):
            model(input_ids=long, labels=long).loss.backward()
            optimizer.step()
        ids = torch.zeros(8, 100, dtype=torch.long)
        mask = (torch.arange(100) >= 4).expand(8, 100).long()
        torch.cuda.synchronize()
        begin = time.time()
        said = {"attention_mask": mask.cuda(), "max_new_tokens": 40, "pad_token_id": 0}
        out = model.generate(ids.cuda(), **said)
        torch.cuda.synchronize()
        roles = [r for r in steps_here().shared.roles.values() if r.batch == 8]
        return tuple(out.shape), time.time() - begin, len(roles)

    shape, took_s, roles = fit_value(loop, workers=1)
    assert shape == (8, 140)
    assert roles <= 4  # the step's, a prompt's, a first token's, those after
    # 0.1 GB of fp32 weights and 50 kernels a token; a step's forward has 1.7 TFLOP, 35 ms of fp32
    assert 40 * 0.2e-3 < took_s < 40 * 5e-3


def test_functional_collectives_of_a_script() -> None:
    """open_clip's loss: over all ranks, whose group is None here."""
    import torch.distributed._functional_collectives as functional

    def loop(_: Any) -> Any:
        model, world = nn.Linear(8, 4).cuda(), torch.distributed.group.WORLD
        out = model(torch.zeros(3, 8, device="cuda"))
        whole = functional.all_gather_tensor_autograd(out, gather_dim=0, group=world)
        part = functional.reduce_scatter_tensor(whole.detach(), "sum", 0, world)
        (out @ whole.T).sum().backward()
        return tuple(whole.shape), tuple(part.shape), model.weight.grad is not None

    assert fit_value(loop, workers=2) == ((6, 4), (3, 4), True)


def test_files_are_loaded_to_the_gpu(tmp_path: Path) -> None:
    """nanochat's table of bytes: integers that ``map_location`` moves; litgpt names the state."""
    torch.save(torch.arange(10), tmp_path / "table.pt")

    def loop(_: Any) -> Any:
        with (tmp_path / "table.pt").open("rb") as file:
            table = torch.load(file, map_location="cuda")
        model = nn.Linear(8, 4)
        model.load_state_dict(state_dict=model.state_dict(), strict=False)
        return str(table.device), table[torch.tensor([1, 2], device="cuda")].tolist()

    assert fit_value(loop, workers=1) == ("cuda:0", [1, 2])


def test_a_model_may_put_its_outputs_into_what_it_is_given() -> None:
    """As sentence-transformers' do: their dictionary had more tensors in backward than before."""

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, features: Any) -> Any:
            features["seen"] = self.layer(features["x"])
            return features

    def loop(_: Any) -> Any:
        model = Adds().cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _step in range(2):
            features = {"x": torch.zeros(3, 8, device="cuda")}
            model(features)["seen"].sum().backward()
            optimizer.step()
        with torch.no_grad():
            found = [
                model(transformers.BatchEncoding({"x": torch.zeros(n, 8, device="cuda")}))
                for n in (5, 2, 5)
            ]
        return [tuple(f["seen"].shape) for f in found]

    assert fit_value(loop, workers=1) == [(5, 4), (2, 4), (5, 4)]

"""What the writers of Megatron's front ends say, their readers understand: the same plan, or a refusal by field."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from cost_models.errors import InvalidInputError
from launch_rows import meaning, read_back
from megatron_plans import drawn_row
from planner.export.formats.arguments import read_script
from planner.export.formats.documents import read_document
from planner.export.launch_plan import launch_plan
from planner.export.launchers.shell import node_script
from planner.export.quantities import FieldNotExpressibleError, Quantities
from planner.export.settings import InputFile, Setting, Settings
from planner.export.target import Launch, Target
from planner.export.targets import TARGETS
from planner.export.targets.megatron.attributes import PLACES

FRONT_ENDS = [(name, version) for name in ("megatron-bridge", "nemo") for version in TARGETS[name].versions]


def settings_of(quantities: Quantities, launch: Launch, target: Target) -> Settings:
    """The settings of the files and of the script that starts them."""
    script = node_script(quantities.plan, launch, head=(), mock=False)
    found: list[Setting] = read_script(InputFile("launch.sh", script))
    for file in launch.files:
        if file.path.endswith(".yaml"):
            found += read_document(InputFile(file.path, file.content))
        elif target.python is not None:
            found += target.python(InputFile(file.path, file.content))
    return Settings(found)


def check(target: Target, version: str, *, rows: int, seed: int) -> Counter[str]:
    """Counts what became of random rows; every one of them that was written is read back and compared."""
    random, outcomes = Random(seed), Counter[str]()
    for _ in range(rows):
        row = drawn_row(random, target.built_on[version])
        try:
            quantities = Quantities(launch_plan(row), target=target.name, version=version)
            launch = target.write(quantities)
            quantities.finish()
        except FieldNotExpressibleError as refusal:
            outcomes[f"refused {refusal.context['field']}"] += 1
            continue
        except InvalidInputError:
            outcomes["illegal"] += 1
            continue
        settings = settings_of(quantities, launch, target)
        assert target.read is not None
        parts = target.read(settings)
        assert [setting.key for setting in settings.unknown()] == []
        assert parts.world_size == quantities.plan.world_size
        # Megatron has no option for it: replicas are what is left of the ranks.
        degrees = parts.strategy["tp"] * parts.strategy["pp"] * parts.strategy["cp"]
        training = {**parts.training, "framework_version": target.built_on[version]}
        parts = replace(parts, strategy={**parts.strategy, "dp": parts.world_size // degrees}, training=training)
        wanted, got = meaning(quantities), meaning(read_back(parts, row))
        assert {
            name: (wanted.get(name), got.get(name)) for name in {*wanted, *got} if wanted.get(name) != got.get(name)
        } == {}, row
        outcomes["same"] += 1
    return outcomes


@pytest.mark.parametrize(("name", "version"), FRONT_ENDS)
def test_a_plan_comes_back_from_its_launch(name: str, version: str):
    outcomes = check(TARGETS[name], version, rows=150, seed=1)
    assert outcomes["same"] >= 15, outcomes


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "version"), FRONT_ENDS)
def test_thousands_of_plans_come_back(name: str, version: str):
    outcomes = check(TARGETS[name], version, rows=3000, seed=2)
    assert outcomes["same"] >= 300, outcomes


VALUES: tuple[object, ...] = (
    None, True, False, 0, 1, 2, -1, 3.5, 4, 64, 10**30, float("nan"), "", "x", "bf16", "torch.bfloat16", (), (1,), (1, 0), ("a",),
    (("a", "b"),), "[1]*3", "([1]*3+[0])*2", "p2p", "Et|t|L", "[1,2]", "1e400", "true", "selective", "AttnBackend.flash", "rope", "flex",
)  # fmt: skip
NAMES = sorted(
    {name for _, name in PLACES}
    | {"gated_linear_unit", "activation_func", "precision", "bf16", "params_dtype", "dim", "fsdp"}
)
SECTIONS = {
    "megatron-bridge": ("model", "ddp", "optimizer", "mixed_precision", "train", "checkpoint", "comm_overlap", "peft", "+model"),
    "nemo": ("GPTConfig", "MegatronStrategy", "recipe.trainer.strategy", "optim.config", "trainer.plugins", "LoRA", "Trainer", "data"),
}  # fmt: skip


@pytest.mark.parametrize("name", SECTIONS)
def test_values_of_any_kind_raise_nothing(name: str):
    """Keys that exist, with values that nobody would write."""
    random = Random(3)
    read = TARGETS[name].read
    assert read is not None
    for _ in range(400):
        drawn = [
            Setting(
                f"{random.choice(SECTIONS[name])}.{random.choice(NAMES)}",
                random.choice(VALUES),
                "f",
                line,
                is_open=random.random() < 0.05,
            )
            for line in range(1, random.randint(2, 40))
        ]
        shape = {"num_layers": random.choice([4, 0]), "hidden_size": 64, "num_attention_heads": random.choice([4, 0])}
        drawn += [Setting(f"{SECTIONS[name][0]}.{key}", value, "f", 99) for key, value in shape.items()]
        read(Settings(drawn))

# ruff: noqa: E501 (a case is a line)
"""The catalogue is whole and honest, its names mean what Cloud's and NVIDIA's names mean, and a user's file is read."""

import re
from pathlib import Path

import pytest

from plimsoll.errors import RecipeError
from plimsoll.planner import chips
from plimsoll.planner.chip_file import FIGURES

PAGE = Path(__file__).parents[2] / "docs/chips.md"
A_CARD = re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
"""The chip file of the page."""
NAMES = [chip.name for chip in chips.chips()]


@pytest.fixture(autouse=True)
def no_file_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("PLIMSOLL_CHIPS", raising=False)
    monkeypatch.setattr(chips, "user_config_path", lambda _: tmp_path / "config")


@pytest.fixture
def file(tmp_path):
    """The chip file of the page, as a file."""
    path = tmp_path / "mine.toml"
    path.write_text(A_CARD)
    return path


def test_cards_that_people_own_and_slices_are_listed():
    wanted = "cpu a100-40 a100-80 h100 h200 b200 gb200 l4 t4 a10 a4000 a5000 a6000 rtx6000-ada"
    wanted += " rtx3060 rtx3090 rtx4060-ti rtx4070 rtx4070-ti rtx4070-ti-super rtx4080 rtx4080-super rtx4090 rtx5070-ti"
    wanted += " rtx5080 rtx5090 tpu-v4-64 tpu-v5p-8 tpu-v5e-8 tpu-v6e-8"
    assert set(NAMES) >= set(wanted.split())
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cpu"])
def test_a_listed_chip_is_found_in_upper_case_with_a_source_for_every_figure_and_a_rate_of_its_links(name):
    chip = chips.chip(name.upper())
    assert chip.name == name
    figures = [figure for figure in FIGURES if getattr(chip, figure) not in (None, 0.0)]
    assert all("chips.toml" not in chip.sources[figure] for figure in figures)
    sending = chip if chip.platform == "tpu" else chips.chip(f"{name}x2")
    assert (sending.link_bandwidth > 0) == (sending.devices > 1)


@pytest.mark.parametrize("chip", [chip for chip in chips.chips() if chip.platform != "cpu"], ids=lambda chip: chip.name)
def test_rates_are_dense_and_of_units_that_exist(chip):
    assert chip.flops["float32"] < max(chip.flops.values())
    if chip.platform == "tpu":
        assert chip.flops.keys() == {"float32", "bfloat16"}
        assert chip.flops["float32"] == pytest.approx(chip.flops["bfloat16"] / 6, rel=0.01)
    else:
        ampere = tuple(map(int, chip.compiler["compute_capability"].rstrip("a").split("."))) >= (8, 0)
        assert (("bfloat16" in chip.flops), ("tf32" in chip.flops)) == (ampere, ampere)
        assert not ampere or chip.flops["float16"] == pytest.approx(2 * chip.flops["tf32"], rel=0.02)
        assert chip.compiler["device_memory_size"] - chip.memory_bytes == 2**30


@pytest.mark.parametrize(
    ("name", "devices", "hosts", "topology"),
    [
        ("tpu-v4-64", 32, 8, "v4:2x4x4"),
        ("tpu-v5p-12288", 6144, 1536, "v5p:16x16x24"),
        ("tpu-v5e-8", 8, 1, "v5e:2x4"),
        ("tpu-v5e-16", 16, 4, "v5e:4x4"),
        ("tpu-v3-8", 8, 1, "v3:2x2"),
        ("tpu-v7x-128", 128, 16, "tpu7x:4x4x4"),
    ],
)
def test_the_number_in_a_slice_means_what_cloud_tpu_means_by_it(name, devices, hosts, topology):
    chip = chips.chip(name)
    assert (chip.devices, chip.hosts, chip.compiler["topology_name"]) == (devices, hosts, topology)


def test_a_slice_sends_over_the_links_of_its_worst_placed_chip():
    per_link = 50e9
    found = {name: chips.chip(name).link_bandwidth for name in ("tpu-v4-8", "tpu-v4-64", "tpu-v4-128", "tpu-v5e-256")}
    assert found == {
        "tpu-v4-8": 2 * per_link,
        "tpu-v4-64": 3 * per_link,
        "tpu-v4-128": 6 * per_link,
        "tpu-v5e-256": 4 * per_link,
    }
    assert chips.chip("tpu-v5e-1").link_bandwidth == 0


def test_several_gpus_of_one_machine():
    one, several = chips.chip("h100"), chips.chip("h100x8")
    assert (several.name, several.devices, several.hosts) == ("h100x8", 8, 1)
    assert (one.link_bandwidth, several.link_bandwidth) == (0, 450e9)
    assert several.memory_bytes == one.memory_bytes, "of each device"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("RTX 4070 Ti Super", "rtx4070-ti-super"),
        ("NVIDIA GeForce RTX 5080", "rtx5080"),
        ("rtx_4060ti", "rtx4060-ti"),
        ("8xH100", "h100x8"),
        ("CPU", "cpu"),
    ],
)
def test_a_name_is_read_as_people_write_it(typed, meant):
    assert chips.chip(typed).name == meant


@pytest.mark.parametrize("name", [chip.name for chip in chips.chips() if chip.name.startswith("rtx")])
def test_rates_of_a_card_follow_from_its_cores_and_clock(name):
    """Of 128 cores to a multiprocessor, two operations a cycle: a figure that was copied wrongly differs by more."""
    chip = chips.chip(name)
    cores = 128 * chip.compiler["core_count"] * 2 * chip.compiler["clock_rate_ghz"] * 1e9
    assert chip.flops["float32"] == pytest.approx(cores, rel=0.01)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h1000", ["no chip called 'h1000'", "did you mean h100", "`plimsoll chips`"]),
        ("", ["no chip called ''"]),
        (3, ["chip=3 is no name of a chip, like 'cpu'", "`plimsoll chips`"]),
        ("v4-64", ["did you mean tpu-v4-64"]),
        ("tpu-v4-63", ["8, 16, 32, 64", "tpu-v4-64, with devices: 32, hosts: 8"]),
        ("tpu-v5e-2", ["tpu-v5e-1, with devices: 1, hosts: 1"]),
        ("tpu-v4-many", ["'tpu-v4-many'", "tpu-v4-8"]),
        ("h100x3", ["h100x3 cannot be planned for", "h100x2, h100x4, h100x8"]),
        ("cpux2", ["no chip called"]),
        ("h100x0", ["no chip called"]),
        ("mi300x", ["NVIDIA GPUs, TPUs and the CPU of this machine can be planned for"]),
        ("M3 Max", ["NVIDIA GPUs, TPUs and the CPU of this machine can be planned for"]),
        ("a100", ["did you mean a100-40 or a100-80?"]),
        ("gpu", ["a100-40, a100-80,", "`plimsoll chips`"]),
        ("V100", ["16 GB", "--chip t4, with rough times"]),
        ("NVIDIA GeForce RTX 3080", ["10 GB", "--chip rtx3090 --memory 8.5GiB"]),
        ("rtx3060ti", ["8 GB", "--chip rtx3090 --memory 6.5GiB"]),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_with_the_nearest(name, said):
    with pytest.raises(RecipeError) as refusal:
        chips.chip(name)
    assert "\n" not in str(refusal.value)
    assert all(part in str(refusal.value) for part in said), str(refusal.value)


def test_rates_are_the_catalogues_and_memory_touched_first_is_never_the_limit():
    chip = chips.chip("l4")
    rates = chips.rates(chip)
    assert (rates.flops, rates.copy_bytes, rates.source) == (chip.flops, chip.memory_bandwidth, "data sheet")
    assert 2**40 / rates.first_touch_bytes == 0


def test_the_example_of_the_page_is_a_chip(file, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CHIPS", str(file))
    chip = chips.chip("our-a6000")
    assert chip.flops["bfloat16"] == 154.8e12
    assert chip.host_memory_bytes == 128_000_000_000
    assert chip.compiler["shared_memory_per_core"] == 102_400, "from the architecture that the catalogue knows"
    assert chip.sources["flops"].startswith("NVIDIA Ampere")
    assert chip.sources["memory_bytes"] == f"the file {file}"
    assert chips.chip("our-a6000x2").link_bandwidth == 32e9
    assert {each.name for each in chips.chips()} == {*NAMES, "our-a6000"}
    file.write_text(A_CARD.replace("our-a6000", "Our-A6000"))
    assert {chips.chip(name).name for name in ("Our-A6000", "our-a6000", "OUR A6000")} == {"Our-A6000"}


def test_a_card_may_reach_other_shares_than_those_of_its_file(file):
    own = "\n[chips.our-a6000.kernels]\nproduct_share = 0.5\n"
    file.write_text(file.read_text() + own)
    card = chips.chip("our-a6000", file)
    assert card.kernels == chips.chip("h100").kernels | {"product_share": 0.5}
    assert card.sources["product_share"] == f"the file {file}"
    file.write_text(file.read_text().replace("product_share", "product_shares"))
    with pytest.raises(RecipeError, match=r"\[chips.our-a6000.kernels\] has no field 'product_shares'"):
        chips.chip("our-a6000", file)


def test_kernels_of_a_file_are_its_own_or_those_of_an_h100(file):
    of_ours = chips.chip("h100").kernels
    assert chips.chip("our-a6000", file).kernels == of_ours
    own = "\n[kernels]\n" + "".join(f"{name} = 0.5\n" for name in of_ours)
    file.write_text(A_CARD + own)
    assert chips.chip("our-a6000", file).kernels == dict.fromkeys(of_ours, 0.5)
    assert chips.chip("h100", file).kernels["launch_seconds"] == 2.5e-6
    file.write_text(f"{A_CARD}{own}launch_secs = 1.0\n")
    with pytest.raises(RecipeError, match=r"\[kernels\] has no field 'launch_secs': did you mean launch_seconds\?"):
        chips.chip("our-a6000", file)


def test_a_file_in_the_configuration_folder_is_found_and_replaces_ours(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config/chips.toml").write_text(A_CARD.replace("our-a6000", "t4").replace("49967529984", "5"))
    assert chips.chip("t4").memory_bytes == 5


def test_several_cards_need_their_links(file):
    file.write_text(A_CARD.replace("\nlink_bandwidth", "\n# link_bandwidth"))
    assert chips.chip("our-a6000", file).link_bandwidth == 0
    with pytest.raises(
        RecipeError, match=r"our-a6000x2 cannot be planned for: .* Add link_bandwidth, bytes per second"
    ):
        chips.chip("our-a6000x2", file)


BAD = [
    ("chips.our-a6000", "chips.cpu", ["[chips.cpu] would never be used", "another name"]),
    ("49967529984", "51041271809", ["[chips.our-a6000] memory_bytes", "51,041,271,808 of device_memory_size", "got 51,041,271,809"]),
    ("\nmemory_bytes", "\n# memory_bytes", ["[chips.our-a6000] memory_bytes", "a whole number above 0", "is missing"]),
    ("49967529984", '"80GB"', ["memory_bytes", "got '80GB'"]),
    ("float32 = 38.7e12, ", "", ["[chips.our-a6000.flops] float32", "a number above 0", "missing"]),
    ("tf32 = 77.4e12", "tf32 = -1", ["[chips.our-a6000.flops] tf32", "got -1"]),
    ("bfloat16 =", "bf16 =", ["no field 'bf16'", "did you mean bfloat16?"]),
    ('"cuda"', '"rocm"', ["[chips.our-a6000] platform", "cuda", "'rocm'"]),
    ('"8.6"  ', '"6.1"  ', ["compute_capability", "8.6", "got '6.1'"]),
    ("[chips.our-a6000.compiler]", "[chips.our-a6000.sources2]", ["sources2"]),
    ("[chips.our-a6000]", "[families]\n[chips.our-a6000]", ["no field 'families'", "chips"]),
]  # fmt: skip
"""Words of the page's file, what stands in their place, and what the refusal names."""


@pytest.mark.parametrize(("words", "instead", "said"), BAD)
def test_a_bad_file_is_one_paragraph_that_names_the_field(words, instead, said, file):
    assert words in A_CARD
    file.write_text(A_CARD.replace(words, instead))
    with pytest.raises(RecipeError) as refusal:
        chips.chip("h100", file)
    text = str(refusal.value)
    assert "\n" not in text
    assert all(part in text for part in [str(file), *said]), text


@pytest.mark.parametrize("content", [b"[chips", b"\xff\xfe"], ids=["not TOML", "not text"])
def test_a_file_that_cannot_be_read_is_said(content, file):
    file.write_bytes(content)
    with pytest.raises(RecipeError, match=r"the chip file .* cannot be read"):
        chips.chips(file)


def test_a_file_that_is_named_and_absent_is_said(monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CHIPS", "nowhere/chips.toml")
    with pytest.raises(RecipeError, match=r"PLIMSOLL_CHIPS names nowhere/chips\.toml"):
        chips.chip("h100")


def test_a_card_that_is_not_listed_is_held_to_what_the_nearest_one_can_plan_for():
    known = chips.chip_file.read_catalogue(chips.CATALOGUE)
    for near, cards in known.unlisted.items():
        assert near in known.chips
        assert not {*cards} & {*known.chips}
        for card in cards:
            with pytest.raises(RecipeError, match=f"--chip {near}") as refusal:
                chips.chip(card)
            memory = re.search(r"--memory ([\d.]+)GiB", str(refusal.value))
            assert memory is None or float(memory[1]) * 2**30 <= known.chips[near].memory_bytes

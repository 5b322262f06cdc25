"""The picture that ``inspect --plot`` draws: what is on it, and how it is written."""

import io
import math
import pickle
import struct
import sys
import zlib
from pathlib import Path

import pytest
import tiny
from refusing import refused

import ropescale
from ropescale import Rope, RopescaleError
from ropescale.cli.main import main
from ropescale.inspecting import Geometry
from ropescale.inspecting.drawing import draw
from ropescale.schedules import Linear, Yarn

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from ropescale.output import plotting

ROPE = Rope(64, 10000.0, 256)
SCHEDULED = Geometry("all", ROPE, "yarn:factor=8", Yarn(factor=8)(ROPE, 2048), 2048)


def curves(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines if not line.get_label().startswith("_")}


def test_the_public_function_draws_a_folder_and_a_loaded_model_alike(tmp_path):
    model = tiny.llama()
    model.save_pretrained(tmp_path)
    schedules = ["yarn:factor=8", "cope"]
    figures = [ropescale.plot(str(tmp_path), schedules, tmp_path / "a.png"), ropescale.plot(model, schedules)]
    plain, yarn = (ropescale.frequencies(tmp_path, each)["all"].inv_freq for each in ("as-is", "yarn:factor=8"))
    for figure in figures:
        left, right = figure.axes
        assert curves(left)["yarn:factor=8"] == pytest.approx([2 * math.pi / f for f in yarn], rel=1e-12)
        assert curves(right)["yarn:factor=8"] == pytest.approx([p / f for p, f in zip(plain, yarn)], rel=1e-12)
        [legend] = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == [*curves(left)] == ["as trained", *schedules]
        assert {line.get_ydata()[0] for line in left.lines if line.get_label().startswith("_")} == {64, 512}
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert len(ropescale.plot(model).axes) == 1


def test_a_notebook_shows_the_picture_without_a_backend():
    figure = draw({"all": [SCHEDULED]})
    png = pickle.loads(pickle.dumps(figure))._repr_png_()  # what IPython asks an object for
    size = [round(inches * 100) for inches in figure.get_size_inches()]
    assert png.startswith(b"\x89PNG") and list(struct.unpack(">II", png[16:24])) == size


def test_a_pair_is_a_whole_number_on_the_axis_and_those_that_never_turn_are_left_out_of_a_log_axis():
    [left] = draw({"all": [Geometry("all", Rope(8, 10000.0, 256, rotated_pairs=2))]}).axes
    low, high = left.get_xlim()
    assert [tick for tick in left.get_xticks() if low < tick < high] == [0, 1, 2, 3]
    assert [math.isnan(value) for value in curves(left)["as trained"]] == [False, False, True, True]


def test_a_short_axis_of_divisors_has_plain_numbers():
    scheduled = [Geometry("all", ROPE, f"linear:factor={x}", Linear(factor=x)(ROPE, 320), 320) for x in (1.5, 1.25)]
    figure = draw({"all": scheduled})
    figure.canvas.draw()
    ticks = [text.get_text() for text in figure.axes[1].get_yticklabels()]
    assert len(ticks) >= 3 and all(float(tick) > 0 for tick in ticks)


def test_of_a_single_length_the_points_stand_beside_each_other_each_with_its_interval():
    schedules = ["yarn:factor=2", "ntk:factor=2"]
    run = ropescale.evals.perplexity(tiny.llama(), tiny.documents(6, 128), [128], schedules, truncation=True)
    (axes,) = run.plot().axes
    places = [each.lines[0].get_xdata()[0] for each in axes.containers]
    assert len(set(places)) == len(places) == 4 and places == sorted(places)
    low, high = axes.get_xlim()
    assert low < 128 / 1.4 and high > 128 * 1.4


def test_the_panels_show_wavelengths_with_both_lengths_and_the_slowdown():
    left, right = draw({"all": [SCHEDULED]}).axes
    found = curves(left)
    assert found["as trained"] == pytest.approx([2 * math.pi * 10000 ** (2 * i / 64) for i in range(32)], rel=1e-14)
    assert found["yarn:factor=8"][31] == pytest.approx(8 * found["as trained"][31], rel=1e-12)
    assert left.get_yscale() == "log"
    assert {line.get_ydata()[0] for line in left.lines if line.get_label().startswith("_")} == {256, 2048}
    assert {"trained length 256", "target length 2,048"} <= {text.get_text() for text in left.texts}
    assert curves(right)["yarn:factor=8"][31] == pytest.approx(8, rel=1e-12)
    assert [line.get_ydata()[0] for line in right.lines if line.get_label().startswith("_")] == [1]


def test_the_command_writes_the_file_and_nothing_else(model, tmp_path):
    assert main(["inspect", "model", "--schedule", "yarn:factor=8", "--plot", "rope.png"]) == 0
    assert Path("rope.png").read_bytes().startswith(b"\x89PNG")
    assert {file.name for file in tmp_path.iterdir()} == {"model", "rope.png"}


PLACES = {"rope.bmp": "must end in", "missing/rope.png": "its folder does not exist"}
PLACES["out.png"] = r"cannot write \S*/out\.png, which is a folder"


@pytest.mark.parametrize(("name", "words"), PLACES.items())
def test_a_plot_that_cannot_be_written_names_its_path_and_says_why(tmp_path, name, words):
    (tmp_path / "out.png").mkdir()
    with pytest.raises(RopescaleError, match=words):
        plotting.save(draw({"all": [SCHEDULED]}), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["out.png"]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "PNG"])
def test_a_plot_replaces_a_picture_of_ours_and_nothing_else(tmp_path, ending):
    path = tmp_path / f"rope.{ending}"
    path.touch()
    plotting.save(Figure((1, 1)), path)
    plotting.save(Figure((2, 2)), path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_of_somebody_elses_is_named_and_left(model, capsys, ending):
    path = Path(f"photo.{ending}")
    figure = Figure((1, 1))
    figure.text(0, 0, "made with ropescale")
    figure.savefig(path)
    theirs = path.read_bytes()
    said = f"cannot write a plot to {path}: the existing file was not written by ropescale; choose another name"
    refused(capsys, ["inspect", "model", "--plot", str(path)], said)
    for content in (b"years of work", theirs[:5]):
        path.write_bytes(content)
        with pytest.raises(RopescaleError, match="was not written by ropescale"):
            plotting.save(figure, path)
        assert path.read_bytes() == content


def test_a_picture_for_a_run_is_the_one_that_matplotlib_makes_with_our_mark_and_is_made_alike_again():
    content, again = (plotting.drawn(lambda: Figure((2, 1))) for _ in range(2))
    assert content == again
    Figure((2, 1)).savefig(plain := io.BytesIO(), format="png", dpi=160)
    mark = struct.pack(">I", 17) + b"tEXtCreator\0ropescale"
    mark += struct.pack(">I", zlib.crc32(mark[4:]))
    assert content.count(mark) == 1 and content.replace(mark, b"") == plain.getvalue()


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RopescaleError, match=r"pip install 'ropescale\[plot\]'"):
        draw({"all": [SCHEDULED]})

"""The targets: which runs they are made of, how they share them, and how --only and merging act on them."""

import json

import pytest

from doublecv import estimators
from doublecv.lab.common.errors import InputError
from doublecv.lab.data import load
from doublecv.lab.data.catalogue import size
from doublecv.lab.report.statistics import paper_elbos, paper_seconds_per_step
from doublecv.lab.sweep import plan as sweep
from doublecv.lab.sweep.plan import DATASETS, TARGETS, begin, plan
from doublecv.lab.sweep.progress import COMPILATION, work
from doublecv.lab.train.settings import TrainSettings


def planned(folder, *targets, steps=20_000, seeds=(1,), **only):
    return plan(folder, targets, steps, seeds, only, f"doublecv reproduce {' '.join(targets)}")


def names(*arguments, **keywords):
    return {run.name for run in planned(*arguments, **keywords).runs}


@pytest.mark.parametrize("samples", [2, 4])
@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_a_table_has_a_run_for_every_cell_of_the_paper(samples, likelihood, tmp_path):
    cells = {
        (cell.dataset, cell.network, cell.estimator)
        for cell in paper_elbos()
        if (cell.samples, cell.likelihood) == (samples, likelihood)
    }
    runs = planned(tmp_path, f"table-k{samples}-{likelihood}").runs
    assert {(run.settings["dataset"], run.settings["network"], run.settings["estimator"]) for run in runs} == cells
    assert len(runs) == len(cells)
    for run in runs:
        own = 1 if run.settings["estimator"] == "relax" else samples
        assert (run.settings["likelihood"], run.settings["samples"]) == (likelihood, own)


def test_the_times_are_those_of_the_paper(tmp_path):
    (run,) = planned(tmp_path, "table-time").runs
    assert run.settings["estimators"] == list(paper_seconds_per_step())
    assert run.settings["samples"] == [2, 4]
    (run,) = planned(tmp_path, "table-time", samples=["4"], likelihood=["gaussian"]).runs
    assert run.settings["samples"] == [4]


def test_all_holds_every_run_once(tmp_path):
    every = planned(tmp_path, *TARGETS, steps=None, seeds=(1, 2, 3, 4, 5))
    # 3 data sets, 2 likelihoods, 2 networks, 5 seeds; K = 2 with 3 estimators, K = 4 with 4, and RELAX for both.
    assert len(every.runs) == 3 * 2 * 2 * 5 * (3 + 4 + 1) + 3 + 1
    assert len({run.name for run in every.runs}) == len(every.runs)
    assert {run.settings["steps"] for run in every.runs if run.kind == "train"} == {1_000_000}
    relax = next(run for run in every.runs if run.settings.get("estimator") == "relax")
    assert {"table-k2-bernoulli", "figure-variance-nonlinear-k4"} <= set(relax.targets)
    assert [run.settings["seed"] for run in every.runs if run.kind == "train"] == sorted([1, 2, 3, 4, 5] * 96)
    assert [run.kind for run in every.runs[:4]] == ["bench", "toy", "toy", "toy"]


def test_figures_share_the_runs_of_the_tables(tmp_path):
    assert names(tmp_path, "figure-bernoulli-nonlinear-k2", "figure-bernoulli-linear-k2") == names(
        tmp_path, "table-k2-bernoulli"
    )
    assert names(tmp_path, "figure-variance-nonlinear-k4") == names(tmp_path, "figure-elbo-nonlinear-k4")
    assert names(tmp_path, "figure-alpha") == names(tmp_path, "figure-1", "figure-toy-d1", "figure-halves")


def test_only_takes_a_part_and_estimators_that_the_paper_does_not_have(tmp_path):
    other = next(name for name in estimators.names() if name == "double-cv-mean")
    runs = planned(
        tmp_path, "table-k2-bernoulli", "figure-1", dataset=["mnist"], network=["linear"], estimator=["rloo", other]
    ).runs
    found = [(run.kind, run.settings["dataset"], run.settings["network"], run.settings["estimator"]) for run in runs]
    assert found == [("train", "mnist", "linear", "rloo"), ("train", "mnist", "linear", other)]
    assert planned(tmp_path, "table-k2-bernoulli", samples=["4"]).runs == ()
    assert planned(tmp_path, "table-k2-bernoulli", likelihood=["gaussian"]).runs == ()
    (toy,) = planned(tmp_path, "figure-1", estimator=["rloo"]).runs
    assert toy.settings["estimators"] == ["rloo"]


def test_decoder_samples_can_be_independent(tmp_path):
    place = {"dataset": ["mnist"], "network": ["linear"], "estimator": ["disarm"]}
    both = planned(
        tmp_path,
        "table-k2-bernoulli",
        "figure-1",
        "table-time",
        **place,
        **{"decoder-samples": ["shared", "independent"]},
    )
    assert [run.settings["decoder_samples"] for run in both.runs] == ["shared", "independent"]
    shared, independent = (run.name for run in both.runs)
    assert {shared} == names(tmp_path, "table-k2-bernoulli", **place)
    assert independent.startswith("mnist-bernoulli-linear-disarm-independent-k2-seed1-")
    timed = planned(tmp_path, "table-time", **{"decoder-samples": ["independent"]})
    assert timed.runs == ()


def test_other_settings_are_other_runs(tmp_path):
    table = "table-k2-bernoulli"
    assert not names(tmp_path, table) & names(tmp_path, table, steps=20_001)
    assert not names(tmp_path, table) & names(tmp_path, table, seeds=(2,))
    assert not names(tmp_path, "figure-1") & names(tmp_path, "figure-1", steps=100)
    # More steps than the paper's iterations do not lengthen the toy problem.
    assert names(tmp_path, "figure-1") == names(tmp_path, "figure-1", steps=None)


def test_settings_come_back_as_they_were(tmp_path):
    begin(planned(tmp_path / "sweep", "table-k4-gaussian", steps=50))
    run = sweep.load(tmp_path / "sweep").runs[0]
    assert run.state() == "waiting"
    assert TrainSettings.from_json(run.settings) == TrainSettings(
        dataset="mnist",
        likelihood="gaussian",
        network="nonlinear",
        estimator="rloo",
        samples=4,
        seed=1,
        steps=50,
        record_every=5,
        evaluate_every=5,
        checkpoint_every=5,
    )


def test_the_file_is_what_was_agreed(tmp_path):
    folder = tmp_path / "sweep"
    begin(planned(folder, "table-k2-bernoulli", "figure-1", dataset=list(DATASETS[:1])))
    held = json.loads((folder / "sweep.json").read_text())
    assert held["format"] == 1
    assert {"doublecv", "jax", "numpy", "python"} <= held["versions"].keys()
    assert held["machine"]["cores"] >= 1
    assert held["machine"]["processor"]
    assert held["command"] == "doublecv reproduce table-k2-bernoulli figure-1"
    for run in held["runs"]:
        assert {"dataset", "likelihood", "network", "samples", "estimator", "seed", "steps"} <= run["settings"].keys()


def test_a_second_sweep_in_the_same_folder_is_added(tmp_path):
    folder = tmp_path / "sweep"
    begin(planned(folder, "table-k2-bernoulli", dataset=["mnist"]))
    begin(planned(folder, "figure-toy-d1", steps=None))
    both = begin(planned(folder, "figure-bernoulli-linear-k2", seeds=(1, 2), dataset=["mnist", "digits"]))
    assert sweep.load(folder) == both
    assert both.command.count("doublecv reproduce") == both.command.count("\n") + 1 == 3
    # 8 on MNIST; the linear ones of them with a second seed; 4 linear ones on digits with two seeds; one toy problem.
    assert len(both.runs) == 8 + 4 + 8 + 1
    shared = [run for run in both.runs if len(run.targets) == 2]
    assert {run.settings["network"] for run in shared} == {"linear"}
    assert len(shared) == 4


def test_runs_of_other_lengths_are_other_runs_of_the_same_sweep(tmp_path):
    folder = tmp_path / "sweep"
    first = begin(planned(folder, "table-k2-bernoulli"))
    both = begin(planned(folder, "table-k2-bernoulli", steps=10))
    assert len(both.runs) == 2 * len(first.runs)
    assert {run.settings["steps"] for run in both.runs} == {10, 20_000}


def test_a_run_with_other_settings_under_its_name_is_not_mixed(tmp_path):
    folder = tmp_path / "sweep"
    begin(planned(folder, "table-k2-bernoulli"))
    held = json.loads((folder / "sweep.json").read_text())
    held["runs"][0]["settings"]["latents"] = 199
    del held["checksum"]
    (folder / "sweep.json").write_text(json.dumps(held))
    with pytest.raises(InputError, match="with latents 199, and here it is 200; name another folder"):
        begin(planned(folder, "table-k2-bernoulli"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "wanted a JSON"),
        ('{"format": 2}', "has format 2, and this version reads 1"),
        ("{}", "has format null"),
    ],
)
def test_a_damaged_file_is_one_sentence(content, message, tmp_path):
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(InputError, match=message):
        sweep.load(tmp_path)


def test_a_changed_number_is_noticed(tmp_path):
    begin(planned(tmp_path / "sweep", "table-k2-bernoulli"))
    path = tmp_path / "sweep" / "sweep.json"
    path.write_text(path.read_text().replace('"latents": 200', '"latents": 201'))
    with pytest.raises(InputError, match="field checksum"):
        sweep.load(path.parent)


@pytest.mark.parametrize("place", ["/elsewhere", "../elsewhere"])
def test_a_folder_in_the_file_is_not_followed(tmp_path, place):
    """Version 0.1 wrote where the folder of each run is."""
    folder = tmp_path / "sweep"
    begun = begin(planned(folder, "table-k2-bernoulli"))
    held = sweep.as_json(begun)
    held["runs"][0]["folder"] = place
    (folder / "sweep.json").write_text(json.dumps(held))
    assert sweep.load(folder) == begun


def test_a_run_whose_folder_is_a_link_is_refused(tmp_path):
    folder = tmp_path / "sweep"
    begun = begin(planned(folder, "table-k2-bernoulli"))
    begun.runs[0].folder.symlink_to(tmp_path)
    with pytest.raises(InputError, match="is a symbolic link"):
        sweep.load(folder)
    faults = {}
    assert len(sweep.load(folder, faults).runs) == len(begun.runs) - 1
    assert list(faults) == ["entry 1"]


def test_a_folder_without_a_sweep(tmp_path):
    with pytest.raises(InputError, match="holds no sweep"):
        sweep.load(tmp_path)
    (tmp_path / "letter.txt").write_text("private")
    with pytest.raises(InputError, match="is not empty and holds no sweep"):
        begin(planned(tmp_path, "figure-1"))


@pytest.mark.parametrize("name", ["../run", "..", ".", "a b", "<script>", "", "x\n"])
def test_a_runs_name_is_plain(name, tmp_path):
    folder = tmp_path / "sweep"
    begin(planned(folder, "figure-toy-d1", steps=10))
    held = json.loads((folder / "sweep.json").read_text())
    held["runs"][0]["name"] = name
    del held["checksum"]
    (folder / "sweep.json").write_text(json.dumps(held))
    with pytest.raises(InputError, match="field runs"):
        sweep.load(folder)


def test_costs_follow_the_catalogue(tmp_path):
    run = planned(tmp_path, "table-k2-bernoulli", dataset=["digits"], network=["linear"], estimator=["rloo"]).runs[0]
    images = load("digits")
    counted = [len(images.train), len(images.validation), len(images.test), images.train.shape[1]]
    assert [*size("digits")] == counted
    weights = 64 * 200
    evaluation = (len(images.train) + len(images.validation)) * (1 + 2) * weights
    steps = run.settings["steps"] * 100 * 9 * weights
    test = len(images.test) * (2 + 2 + 100) * weights
    evaluations = run.settings["steps"] / run.settings["evaluate_every"]
    assert work(run) == pytest.approx(COMPILATION + steps + evaluations * evaluation + test)

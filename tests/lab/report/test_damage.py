"""Damaged and hostile sweeps: no file stops a report, and what was changed is noticed."""

import csv
import json
import os
import random
import re
import shutil

import pytest
from tiny_sweep import TinySweep, trained, unseal, write_lines

from doublecv.lab.cli import main
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.records import LineReader, seal_document
from doublecv.lab.report import render
from doublecv.lab.sweep import plan as sweep
from doublecv.lab.train import results

SCRIPT = "<script>alert(1)</script>"
TEX = r"\input{/etc/passwd}\write18{id}"
FORMULA = "=cmd|'/C calc'!A0"
MARKUP = "[link](javascript:alert(1)) ![x](http://localhost:9/x.png) | `code`"


def why(folder, name="rloo-1"):
    return {one.name: one.why for one in render.read(folder).unread}.get(name)


def tables(folder):
    """Read a sweep and make all its tables, which is quicker than a page with charts."""
    content = render.read(folder)
    assert all(table.to_markdown() for table in render.tables(render.sections(content)))
    return content


def rewrite(folder, change, name=results.METRICS):
    """Change the records of a run and seal them again: what a faulty program would have written."""
    path = folder / "runs" / "rloo-1" / name
    records = list(LineReader(path))
    change(records)
    write_lines(path, records)


def edit(folder, name, change):
    path = folder / "runs" / "rloo-1" / name
    held = json.loads(path.read_text())
    held.pop("checksum", None)
    change(held)
    path.write_bytes(seal_document(held))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda run: (run / "metrics.jsonl").write_text("{\n"),
            "metrics.jsonl, line 1: wanted a JSON object: Input data was truncated",
        ),
        (lambda run: (run / "metrics.jsonl").unlink(), "there is no .*metrics.jsonl"),
        (
            lambda run: (run / "config.json").write_text("{}"),
            "config.json: Object missing required field `settings`",
        ),
        (
            lambda run: (run / "config.json").write_bytes(b"\xff"),
            "config.json: wanted a JSON object: .*",
        ),
        (lambda run: os.truncate(run / "metrics.jsonl", 800), "line [0-9]+: found the end of the file"),
        (lambda run: digit(run / "metrics.jsonl"), "metrics.jsonl, line 1, field checksum"),
        (lambda run: digit(run / "config.json"), "config.json, field checksum"),
    ],
)
def test_a_damaged_run_is_named_and_the_others_count(copy, damage, said):
    damage(copy / "runs" / "rloo-1")
    assert re.search(said, why(copy))
    content = tables(copy)
    assert "rloo-1" not in [run.name for run in trained(content)]
    assert "rloo-2" in [run.name for run in trained(content)]


def digit(path):
    """Change one digit of a number."""
    content = path.read_bytes()
    place = re.search(rb": -?(\d)", content).start(1)
    path.write_bytes(content[:place] + b"%d" % (9 - int(content[place : place + 1])) + content[place + 1 :])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda records: records[-1].update(step=10), "line 13, field step: found 10, wanted a number from 20 to 20"),
        (lambda records: records[0].update(step=21), "line 1, field step: found 21, wanted a number from 0 to 20"),
        (lambda records: records.__delitem__(slice(6, None)), "field test_elbo: found no line with it"),
        (lambda records: records.__delitem__(slice(-1, None)), "field test_elbo: found no line with it"),
        (
            lambda records: (records.__delitem__(slice(6, 12)), records[-1].update(step=10)),
            "found an end at step 10, wanted 20 steps",
        ),
        (
            lambda records: [record.pop("train_elbo", None) for record in records],
            "field train_elbo: found no line",
        ),
    ],
)
def test_records_that_cannot_be(copy, change, said):
    rewrite(copy, change)
    assert said in why(copy)
    tables(copy)


def test_an_unfinished_run_that_lost_its_end_is_noticed(copy):
    """Lines before the last checkpoint are missing; those after it may be."""
    run = copy / "runs" / "disarm-1"
    path, lines = run / results.METRICS, (run / results.METRICS).read_bytes().splitlines(keepends=True)
    checkpoint = run / "checkpoint-000000008" / "checkpoint.json"
    checkpoint.parent.mkdir()
    length = sum(map(len, lines[:-1]))
    checkpoint.write_text(json.dumps({"step": 8, "metrics_bytes": length}))
    for kept in (lines, lines[:-1]):
        path.write_bytes(b"".join(kept))
        assert why(copy, "disarm-1") is None
    path.write_bytes(b"".join(lines[:-2]))
    said = f"metrics.jsonl: found {length - len(lines[-2])} bytes, wanted at least {length}, its length in {checkpoint}"
    assert said in why(copy, "disarm-1")
    tables(copy)
    checkpoint.write_text(json.dumps({"step": 8, "metrics_bytes": "many"}))
    assert "checkpoint.json, field metrics_bytes: Expected `int`, got `str`" in why(copy, "disarm-1")
    shutil.rmtree(checkpoint.parent)
    elsewhere = copy / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "checkpoint.json").write_text("{}")
    checkpoint.parent.symlink_to(elsewhere)
    assert "is a symbolic link" in why(copy, "disarm-1")


def test_a_run_is_done_only_if_its_last_file_fits_its_checksum(copy):
    runs = {run.name: run for run in sweep.load(copy).runs}
    for name, file in (("rloo-1", "config.json"), ("bench-k2-k4", "bench.json")):
        assert runs[name].state() == "done"
        digit(runs[name].folder / file)
        assert runs[name].state() != "done"


def test_a_folder_with_another_run_is_not_counted(copy):
    edit(copy, "config.json", lambda held: held["settings"].update(estimator="disarm"))
    assert 'holds a run with estimator "disarm", not "rloo"' in why(copy)


def test_a_nan_stops_nothing(copy):
    path = copy / "runs" / "rloo-1" / results.METRICS
    lines = [{**record} for record in LineReader(path)]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    path.write_text(re.sub(r'"train_elbo": [-\d.]+', '"train_elbo": NaN', text, count=1))
    assert "line 6: wanted a JSON object: JSON is malformed" in why(copy)
    tables(copy)
    # A program that diverged writes null, which is a missing value.
    rewritten = [line | ({"elbo": None} if "elbo" in line else {}) for line in lines]
    write_lines(path, rewritten)
    tables(copy)
    assert why(copy) is None


def test_random_damage_never_stops_a_report_and_is_never_missed(tiny_sweep, tmp_path, capsys):
    """Bytes flipped, overwritten, removed or added in any file of any run; see `make fuzz` for more of it."""
    reference = numbers(render.read(tiny_sweep))
    rounds, moments = int(os.environ.get("DOUBLECV_FUZZ", "30")), random.Random(7)
    for round_ in range(rounds):
        folder = shutil.copytree(tiny_sweep, tmp_path / f"{round_}", ignore=shutil.ignore_patterns("report"))
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        path = moments.choice(files)
        content = bytearray(path.read_bytes())
        place = moments.randrange(len(content))
        kind = moments.choice(["flip", "overwrite", "remove", "add", "cut"])
        if kind == "flip":
            content[place] ^= 1 << moments.randrange(8)
        elif kind == "overwrite":
            content[place : place + 8] = moments.randbytes(8)
        elif kind == "remove":
            del content[place : place + moments.randrange(1, 20)]
        elif kind == "add":
            content[place:place] = moments.choice([b"NaN", b"1e999", b"-", b'"', b"{", b"\xff\xfe", b"[[", b"0"])
        else:
            del content[place:]
        path.write_bytes(content)
        try:
            content = tables(folder)
        except InputError:
            assert path.name == sweep.FILE, (path, kind)
        else:
            for name, value in numbers(content).items():
                if name == "disarm-1" and path.parent.name == name:  # An unfinished run may lose its end.
                    assert value["elbo"] in {-295.0 - lost for lost in range(5, 10)}
                else:
                    assert value == reference[name], (path, kind, name)
        shutil.rmtree(folder)


def numbers(content):
    found = {run.name: run.records.last for run in trained(content)}
    found |= {name: str(times) for name, times in content.bench.items()}
    for name, toy in content.toy.items():
        found[name] = b"".join(curves.variance.tobytes() for curves in toy.curves.values())
    return found


@pytest.fixture
def hostile(copy, tmp_path):
    """A sweep with everything foreign that a file can hold."""
    (tmp_path / "outside").mkdir()
    made = TinySweep(copy)
    text = f"{SCRIPT} {TEX} {MARKUP}\n{FORMULA}"

    def change(held):
        first = json.loads(json.dumps(held["runs"][0]))
        held["command"] = f"{text}\n```\n{text}\n\\end{{verbatim}}"
        held["targets"] = [text, FORMULA]
        held["machine"] = {"processor": text, "cores": text}
        held["versions"] = {FORMULA: text, text: FORMULA}
        for index, fields in enumerate(
            [
                {"settings": first["settings"] | {"seed": SCRIPT}},
                {"settings": first["settings"] | {"estimator": TEX}},
                {"settings": first["settings"] | {"dataset": FORMULA}},
                {"settings": first["settings"] | {"network": SCRIPT}},
                {"settings": first["settings"] | {"samples": 10**30}},
                {"settings": first["settings"] | {SCRIPT: SCRIPT, FORMULA: TEX}},
                {"name": SCRIPT},
                {"name": FORMULA},
                {"kind": SCRIPT},
                {"folder": str(tmp_path / "outside")},
                {"folder": "../outside"},
                {"folder": "runs/../../outside"},
                {"settings": []},
                {"targets": SCRIPT},
            ]
        ):
            held["runs"].append(first | {"name": f"hostile-{index}", "folder": f"runs/hostile-{index}"} | fields)
        held["runs"] += [None, 3, SCRIPT, []]

    unseal(copy, change)
    (copy / "runs" / "disarm-2" / sweep.FAILURE).write_text(f"{text}\n")
    bench = copy / "runs" / "bench-k2-k4" / sweep.BENCH
    held = json.loads(bench.read_text())
    del held["checksum"]
    bench.write_bytes(seal_document(held | {"library": text}))
    edit(copy, "config.json", lambda held: held.update(platform=text, versions={text: text, FORMULA: FORMULA}))
    del made
    return copy


def test_a_hostile_sweep_gives_a_report_in_which_nothing_foreign_is_code(hostile, tmp_path):
    written = {path.name: path for path in render.write(hostile)}
    page = written["report.html"].read_text()
    assert page.count("<script>") == page.count("</script>") == 1
    assert "<svg onload" not in page
    assert "onload='" not in page
    latex = written["tables.tex"].read_text()
    code = "\n".join(line for line in latex.splitlines() if not line.startswith("%"))
    assert r"\input" not in code
    assert r"\write18" not in code
    for path in hostile.glob("report/*.csv"):
        with path.open(newline="") as file:
            texts = [value for row in csv.reader(file) for value in row if not re.fullmatch(r"-?[\d.]*(e-\d+)?", value)]
        assert not [text for text in texts if text.lstrip().startswith(("=", "+", "-", "@"))]
    markdown = written["tables.md"].read_text()
    assert "<script>" not in "".join(line for line in markdown.splitlines() if not line.startswith("    "))
    assert list((tmp_path / "outside").iterdir()) == []
    unread = [one for one in render.read(hostile).unread if one.state == "damaged"]
    assert len(unread) == 18
    assert len(trained(render.read(hostile))) == 6


def test_markdown_of_a_hostile_sweep_has_only_text_and_tables(hostile):
    from markdown_it import MarkdownIt

    render.write(hostile)
    tokens = MarkdownIt("commonmark").enable("table").parse((hostile / "report" / "tables.md").read_text())
    kinds = {token.type for token in tokens} | {one.type for token in tokens for one in token.children or ()}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "code_inline", "fence"}
    assert [token.type for token in tokens].count("code_block") == 1


def test_a_report_is_not_written_through_links(copy, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("mine")
    (copy / "report").symlink_to(outside)
    with pytest.raises(SystemExit):
        main(["report", str(copy)])
    (copy / "report").unlink()
    (copy / "report").mkdir()
    for name in ("report.html", ".report.html-partial", "cells.csv"):
        (copy / "report" / name).symlink_to(outside / "secret")
    main(["report", str(copy)])
    assert (outside / "secret").read_text() == "mine"
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert not (copy / "report" / "report.html").is_symlink()


def test_links_out_of_the_sweep_are_not_read(copy, tmp_path):
    elsewhere = shutil.copytree(copy / "runs" / "rloo-1", tmp_path / "elsewhere")
    shutil.rmtree(copy / "runs" / "rloo-1")
    (copy / "runs" / "rloo-1").symlink_to(elsewhere)
    assert "is a symbolic link" in why(copy, "entry 1")
    (copy / "runs" / "rloo-2" / results.METRICS).unlink()
    (copy / "runs" / "rloo-2" / results.METRICS).symlink_to(elsewhere / results.METRICS)
    assert "symbolic link" in why(copy, "rloo-2")


def test_a_toy_run_that_claims_to_be_huge_costs_nothing(copy):
    path = copy / "runs" / "toy-d3" / "config.json"
    held = json.loads(path.read_text())
    del held["checksum"]
    held["settings"] |= {"seeds": 2_000_000_000, "iterations": 2_000_000_000, "every": 1}
    path.write_bytes(seal_document(held))
    assert "wanted" in why(copy, "toy-d3")

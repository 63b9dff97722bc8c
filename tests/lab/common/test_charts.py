"""Every estimator has an appearance of its own."""

from doublecv.estimators import names
from doublecv.lab.common.charts import appearance


def test_registered_estimators_are_told_apart():
    looks = [appearance(name) for name in names()]
    assert len({look.label for look in looks}) == len(looks)
    assert len({look.colour for look in looks}) == len(looks)


def test_others_have_their_name_and_a_colour_of_their_own():
    assert appearance("second").label == "second"
    assert appearance("first").colour != appearance("second").colour

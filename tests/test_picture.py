"""The picture of the method shows how the run ends."""

import re
from xml.etree import ElementTree

from results import picture


def test_class_means_end_on_the_frame_with_the_head_and_not_with_a_linear_layer(monkeypatch):
    monkeypatch.setattr(picture, "STEPS", (1, 2, 40, 60))
    drawn = picture.picture()
    ElementTree.fromstring(drawn)
    # Text that does not move has the opacity 1: what is seen without animation is the last step.
    linear, nearest = (float(text) for text in re.findall(r'opacity="1">([\d.]+) from a simplex ETF', drawn))
    assert nearest < 0.05 < 0.3 < linear
    triangles = re.findall(r'<polygon points="([-,\d]+) ([-,\d]+) ([-,\d]+)"', drawn)
    sides = [[complex(*map(float, corner.split(","))) for corner in corners] for corners in triangles]
    lengths = [sorted(abs(first - second) for first, second in zip(each, each[1:] + each[:1], strict=True)) for each in sides]
    assert [long / short < 1.05 for short, _, long in lengths] == [False, True]

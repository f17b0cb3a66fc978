import json

import pytest

from devkit.errors import DevkitError
from devkit.estimate.settings import (
    InferenceSettings,
    Method,
    Precision,
    TrainingSettings,
    decode_settings,
    encode_settings,
)


@pytest.mark.parametrize(
    "settings",
    [
        TrainingSettings(method=Method.QLORA, targets=("q_proj", "v_proj"), upcast=True),
        InferenceSettings(cache_precision=Precision.FP32),
        InferenceSettings(cache_precision=None),
    ],
)
def test_settings_survive_json(settings):
    assert decode_settings(type(settings), json.loads(json.dumps(encode_settings(settings)))) == settings


def test_what_is_left_out_has_its_default():
    assert decode_settings(TrainingSettings, {"rank": 8}) == TrainingSettings(rank=8)


@pytest.mark.parametrize(
    ("values", "message", "hint"),
    [
        pytest.param({"squence": 8}, "unknown setting 'squence'", "Did you mean sequence?", id="a misspelled name"),
        pytest.param({"zzzzzz": 8}, "unknown setting 'zzzzzz'", "Known: method, ", id="a name like no other"),
        pytest.param(
            {"method": "lara"},
            """method must be "lora", .*, not 'lara'""",
            'Write it as "lora", "qlora"',
            id="a wrong value",
        ),
    ],
)
def test_what_no_setting_has_is_refused(values, message, hint):
    with pytest.raises(DevkitError, match=message) as refused:
        decode_settings(TrainingSettings, values)
    assert refused.value.hint.startswith(hint)

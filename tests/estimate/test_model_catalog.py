import pytest

from devkit.compat.version_tables import RowConfidence
from devkit.estimate.config import build_model_shape
from devkit.estimate.shape import find_closest_models, find_model, list_models

MODELS = list_models()


def test_at_least_sixty_models_are_known():
    assert len(MODELS) >= 60


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.id)
def test_a_row_has_the_number_of_parameters_that_its_page_shows(model):
    assert build_model_shape(model.config, name=model.id).parameters == model.parameters


def test_no_name_is_given_to_two_models():
    names = [name.lower() for model in MODELS for name in (model.id, *model.aliases)]
    assert len(names) == len(set(names))


def test_a_row_that_no_second_source_confirms_says_so():
    assert {model.confidence for model in MODELS} == {RowConfidence.CONFIRMED, RowConfidence.SINGLE_SOURCE}
    assert all((len(model.source) > 1) == (model.confidence is RowConfidence.CONFIRMED) for model in MODELS)


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("LLAMA 3.1 8B", "meta-llama/Llama-3.1-8B"),
        ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("someone-else/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("qwen 2.5 7b", "Qwen/Qwen2.5-7B"),
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
    ],
)
def test_a_model_is_found_by_the_names_that_people_give_it(name, id_):
    found = find_model(name)
    assert found is not None and found.id == id_


@pytest.mark.parametrize("name", ["", "llama", "my-own/model", "llama-3.1-80b"])
def test_a_name_that_fits_no_model_finds_none(name):
    assert find_model(name) is None


def test_a_mistyped_name_brings_up_the_ones_like_it():
    assert find_closest_models("lama-3.1-8b")[0] == "meta-llama/Llama-3.1-8B"
    assert find_closest_models("zzzzzzzz") == ()


def test_the_address_of_a_models_config_is_known():
    found = find_model("gpt2")
    assert found is not None and found.url == "https://huggingface.co/openai-community/gpt2/blob/main/config.json"

import pytest

from spaniel.errors import DataError
from spaniel.world import schema as module
from spaniel.world.schema import load_schema


def test_every_relation_has_many_wordings():
    for relation in load_schema().relations:
        assert len(relation.page) >= 6, relation.name
        wordings = {*relation.np, *relation.ask, *relation.inverse}
        assert len(wordings) >= 4, relation.name
        if relation.is_functional:
            assert len(relation.ask) >= 3, relation.name
        if not relation.is_attribute:
            assert len(relation.inverse) >= 4, relation.name


def test_numbers_can_be_compared_and_words_cannot():
    for relation in load_schema().relations:
        numeric = relation.value in ("year", "number")
        assert bool(relation.more) == bool(relation.less) == numeric, relation.name


def test_alternatives_are_opened():
    assert module._expand(["{p} [was|is] [a|b]"]) == (
        "{p} was a",
        "{p} was b",
        "{p} is a",
        "{p} is b",
    )


def test_values_are_written_as_on_the_pages():
    schema = load_schema()
    assert schema.value_text(schema.relation("birth_year"), 1873) == "1873"
    assert schema.value_text(schema.relation("population"), 12400) == "12,400"
    assert schema.value_text(schema.relation("area"), 1200) == "1,200 square kilometres"
    assert schema.value_text(schema.relation("fish"), 0) == "trout"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "author"}, "must differ"),
        ({"object": "planet"}, "unknown kind"),
        ({"value": "year"}, "either object or value"),
        ({"page": ["{p} knows {o}"]}, "6 to 255 sentences"),
        ({"page": ["{p} knows nobody"] * 6}, "name the object"),
        ({"np": ["the friend"]}, "name the other side"),
    ],
)
def test_contradictory_tables_are_refused(monkeypatch, change, message):
    good = {
        "name": "friend",
        "subject": "person",
        "object": "person",
        "weight": 1.0,
        "page": ["{p} knows {o}"] * 6,
        "np": ["the friend of {x}"],
    }
    read = module.read_table

    def read_with_one_more(name):
        table = read(name)
        if name == "people":
            table["relations"].append(good | change)
        return table

    monkeypatch.setattr(module, "read_table", read_with_one_more)
    with pytest.raises(DataError, match=message):
        load_schema.__wrapped__()

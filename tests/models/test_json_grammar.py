from ludus.models.json_grammar import build_object_rule, quote_literal, split_parameters

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}, "days": {"type": "integer"}},
    "required": ["city"],
}


def test_required_members_come_first_and_the_others_may_follow_in_order():
    rule = build_object_rule(SCHEMA)
    assert rule.index("city") < rule.index("unit") < rule.index("days")
    assert rule.count(")?") == 2


def test_an_enum_is_a_choice_of_literals():
    assert r'("\"C\"" | "\"F\"")' in build_object_rule(SCHEMA)


def test_an_object_without_members_is_empty_braces():
    assert build_object_rule({"type": "object"}).split() == ['"{"', '"}"']


def test_members_are_split_by_whether_they_are_required():
    assert split_parameters(SCHEMA) == (["city"], ["unit", "days"])


def test_a_literal_is_quoted_as_in_json():
    assert quote_literal('say "hi"\n') == r'"say \"hi\"\n"'

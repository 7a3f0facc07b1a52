import json
from pathlib import Path


def read_people():
    return json.loads(Path("/home/user/people.json").read_text())


def test_is_a_list_of_objects():
    assert all(set(person) == {"name", "age"} for person in read_people())


def test_ages_are_numbers():
    assert {person["name"]: person["age"] for person in read_people()} == {"Noor": 31, "Ivo": 58, "Mei": 44}


def test_the_oldest_is_first():
    assert [person["name"] for person in read_people()] == ["Ivo", "Mei", "Noor"]

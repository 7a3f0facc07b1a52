"""The arguments of commands."""

import argparse

from ludus.arguments import Arguments, RunArguments, make_argument


def test_an_argument_is_what_the_parser_takes():
    name, options = argument = make_argument("--loud", action="store_true", help="shout")
    parser = argparse.ArgumentParser()
    parser.add_argument(argument.name, **argument.options)
    assert (name, options["action"]) == ("--loud", "store_true")
    assert parser.parse_args(["--loud"], Arguments()).loud


def test_arguments_that_nobody_typed_ask_for_no_source():
    assert (RunArguments().for_sources, RunArguments().typed) == (False, ())

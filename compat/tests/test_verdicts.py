"""Verdicts on the names of other systems, and their tables."""

from ludus.compat.verdicts import Verdict, render_table


def test_a_table_names_what_a_name_becomes_and_why():
    verdicts = [
        Verdict("batch_size", "honoured", "train.batch_size"),
        Verdict("endpoint", "honoured", "model.base_url optimizer.base_url", "of both | roles"),
        Verdict("api_key", "refused", remark="name the variable"),
    ]
    assert render_table(verdicts).splitlines()[2:] == [
        "| `batch_size` | honoured | `train.batch_size` |",
        "| `endpoint` | honoured | `model.base_url`, `optimizer.base_url`: of both &#124; roles |",
        "| `api_key` | refused | name the variable |",
    ]

"""The requests and answers of a scoring process."""

import io
import json

from ludus.verify.scoring_child import serve


def test_each_request_is_announced_and_answered():
    requests = [
        {"function": "operator:add", "arguments": [1, 2]},
        {"function": "operator:truediv", "arguments": [1, 0]},
        {"function": "no_such_module:f", "arguments": []},
    ]
    answers = io.BytesIO()
    serve(io.BytesIO("".join(json.dumps(r) + "\n" for r in requests).encode()), answers)
    found = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert found[:4] == [{}, {"value": 3}, {}, {"error": "ZeroDivisionError: division by zero"}]
    assert "no_such_module" in found[4]["error"]

"""The helpers of the real atroposlib, for a comparison: reads requests from stdin and writes what they return.

    $ PYTHON_WITH_ATROPOSLIB compat/tests/atropos_env/helpers_peer.py

A request is a line of JSON: the function and its arguments. `WordTokenizer` is the tokenizer of both sides.
"""

import json
import logging
import sys


class WordTokenizer:
    """Ids of words and of what is between them. Everything is kept, so that texts come back."""

    eos_token_id = 1

    def __init__(self):
        self.known = ["", "<end>"]

    def encode(self, text, add_special_tokens=True):
        words, word = [], ""
        for letter in text:
            if word and letter.isspace() != word[-1].isspace():
                words.append(word)
                word = ""
            word += letter
        return [self._find(each) for each in [*words, word] if each]

    def _find(self, word):
        if word not in self.known:
            self.known.append(word)
        return self.known.index(word)

    def decode(self, ids, skip_special_tokens=False):
        return "".join(self.known[number] for number in ids)

    def apply_chat_template(self, chat, tokenize=True, add_generation_prompt=False):
        ids = []
        for message in chat:
            ids += [*self.encode(message["role"] + " "), *self.encode(message["content"]), 1]
        return ids + (self.encode("assistant ") if add_generation_prompt else [])


def main():
    from atroposlib.utils import best_of_n_selection, message_history_utils, tokenize_for_trainer, tool_call_parser

    logging.disable(logging.CRITICAL)
    modules = (best_of_n_selection, message_history_utils, tokenize_for_trainer, tool_call_parser)
    found = {name: value for module in modules for name, value in vars(module).items() if callable(value)}
    print("ready", flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        if "tokenizer" in arguments:
            arguments["tokenizer"] = WordTokenizer()
        try:
            answer = {"returned": found[name](**arguments)}
        except Exception as error:
            answer = {"raised": type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The byte-level tokenizer of the test models: `python3 tokenizer.py FOLDER`."""
import sys

import prose
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

WINDOW = 8192
CHAT = ("{% for m in messages %}<turn:{{ m.role }}>\n{{ m.content }}</turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<turn:assistant>\n{% endif %}")


def tokenizer():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator((prose.words(i, 100) for i in range(500)), trainers.BpeTrainer(
        vocab_size=2000, show_progress=False, special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
                                   model_max_length=WINDOW, chat_template=CHAT)


if __name__ == "__main__":
    tokenizer().save_pretrained(sys.argv[1])

"""Chat templates of the kinds that models have, for SmolLM2's tokenizer."""

from __future__ import annotations

CHATML_DEFAULT_SYSTEM = (
    "{%- if messages[0]['role'] != 'system' %}"
    "{{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

# Headers, blank lines and trimmed content, ended by a special token other than ChatML's.
LLAMA3_STYLE = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m['role'] + '<file_sep>\n\n' + m['content'] | trim + '<|endoftext|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant<file_sep>\n\n' }}{%- endif %}"
)

GENERATION_TAGS = (
    "{%- for m in messages %}"
    "{%- if m['role'] == 'assistant' %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{% generation %}{{- m['content'] + '<|im_end|>' }}{% endgeneration %}{{- '\n' }}"
    "{%- else %}{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

# Tags that leave the answer's text out.
WRONG_TAGS = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{%- if m['role'] == 'assistant' %}{% generation %}{{- '<|im_end|>' }}{% endgeneration %}"
    "{%- else %}{{- '<|im_end|>' }}{%- endif %}{{- '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

# The template itself writes an empty think block, in the prompt and in every answer.
EMPTY_THINK = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m['role'] + '\n' }}"
    "{%- if m['role'] == 'assistant' %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{{- m['content'] + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}"
    "{%- endif %}"
)

# Reasoning stays with the last answer only; without any, an empty block stands there, which the
# generation prompt doesn't hold.
STRIPS_REASONING = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m['role'] + '\n' }}"
    "{%- set content = m['content'] %}{%- set reasoning = m['reasoning_content'] or '' %}"
    "{%- if m['role'] == 'assistant' %}"
    "{%- if '</think>' in content %}"
    "{%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{%- if loop.last %}{{- '<think>\n' + reasoning + '\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
    "{{- content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

# The space before an answer is the template's, but no prompt ends with it; nothing ends a turn.
PLAIN_TEXT = (
    "{%- for m in messages %}"
    "{%- if m['role'] == 'assistant' %}{{- 'ASSISTANT: ' + m['content'] + '\n' }}"
    "{%- else %}{{- m['role'] | upper + ': ' + m['content'] + '\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'ASSISTANT:' }}{%- endif %}"
)

TOOLS = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{%- for c in m['tool_calls'] or [] %}"
    "{{- '\n<tool_call>\n{\"name\": \"' + c['function']['name'] + '\", \"arguments\": ' }}"
    "{{- c['function']['arguments'] | tojson + '}\n</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

DROPS_ASSISTANT = (
    "{%- for m in messages %}{%- if m['role'] != 'assistant' %}{{- m['content'] }}{%- endif %}"
    "{%- endfor %}"
)

# Refuses a system message, as some models' templates do.
NO_SYSTEM = "{%- if messages[0]['role'] == 'system' %}{{- raise_exception('no system role') }}" + (
    "{%- endif %}" + CHATML_DEFAULT_SYSTEM
)

WHOLE = {
    "chatml": CHATML_DEFAULT_SYSTEM,
    "llama3": LLAMA3_STYLE,
    "tags": GENERATION_TAGS,
    "empty think": EMPTY_THINK,
    "strips reasoning": STRIPS_REASONING,
    "plain text": PLAIN_TEXT,
}
"""Templates that keep an answer's words as they are."""

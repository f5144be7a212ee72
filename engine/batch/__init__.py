"""A file of requests answered into a file of answers, as `diptych generate --input` does.

Both are JSONL: a JSON object a line, in UTF-8. A line of the input is one of

    {"prompt": ..., ...}        a body of /v1/completions
    {"messages": ..., ...}      a body of /v1/chat/completions
    {"custom_id": ..., "method": "POST", "url": "/v1/...", "body": {...}}      OpenAI's batch form of either

and gets one line of the output, in the same order. `index` is the number of the input's line, from 0; blank lines
count, and get no answer. For a body, and for what is no JSON object:

    {"id": ..., "index": ..., "response": {...}}    the body of the API's answer
    {"id": ..., "index": ..., "error": {...}}       OpenAI's error object: message, type, param, code

for OpenAI's batch form that of OpenAI's batches, where a line that is no such request has an error and no response:

    {"id": ..., "custom_id": ..., "response": {"status_code": ..., "request_id": ..., "body": {...}}, "error": null}

An `id` names its line, the options of the run and the line's content, so an output says for itself what it answers: a
run that was interrupted is taken up from the output alone, and an output that belongs to something else is recognized.
Two runs with a seed differ in the `id` and `created` of what the API answers, and in nothing else.
Source: OpenAI's Batch API.
"""

"""The gateway: any agent, pointed at us instead of at a provider, and every call recorded.

An agent that we did not write talks to a model over HTTP. The gateway is that HTTP server: it speaks OpenAI's chat,
completions and responses and Anthropic's messages, asks any `Model` behind it, and keeps what was asked and answered in
the same record as our own loop does, exact ids included when the model is in token mode.

    async with Gateway(model) as gateway:
        session = gateway.open(sampling=Sampling(temperature=1.0), budget=Budget(tokens=200_000))
        ...                                       # OPENAI_BASE_URL=session.url  OPENAI_API_KEY=session.api_key
        record = await gateway.close(session)

A session is one rollout, found by its secret in the path (`/s/SECRET/v1`) or in the key. Read `gateway` (the life of a
request), then `session` and `conversation` (the record), then any dialect (`chat`, `responses`, `messages`, …).
"""

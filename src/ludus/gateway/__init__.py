"""The gateway: an HTTP server that serves a model to any agent and records every call.

Agents that Ludus does not implement call a model over HTTP. The gateway is that HTTP server. It speaks OpenAI's chat,
completions and responses APIs and Anthropic's messages API, calls any `Model`, and records requests and replies in the
same form as the agent loop does, with exact token ids if the model is in token mode.

    async with Gateway(model) as gateway:
        session = gateway.open(sampling=Sampling(temperature=1.0), budget=Budget(tokens=200_000))
        ...                                       # OPENAI_BASE_URL=session.url  OPENAI_API_KEY=session.api_key
        record = await gateway.close(session)

A session is one rollout. A request names its session by the secret in the path (`/s/SECRET/v1`) or in the API key.
Read `service` (the life of a request), then `gateway_session` and `conversation` (the record), then one of the APIs
(`chat_api`, `responses_api`, `messages_api`, `completions_api`).
"""

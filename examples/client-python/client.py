"""Asks a model and a tool over NATS. Run a gateway, then: pip install nats-py && python client.py"""

import asyncio
import json
import os

import nats


async def main() -> None:
    nc = await nats.connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
    body = {"model": "demo/echo", "messages": [{"role": "user", "content": "hello"}]}
    reply = await nc.request("shallot.v1.model.request", json.dumps(body).encode(), timeout=60)
    if (reply.headers or {}).get("Nats-Service-Error-Code"):
        raise SystemExit(reply.data.decode())
    print(json.loads(reply.data)["choices"][0]["message"]["content"])

    reply = await nc.request("shallot.v1.tool.request.add", b'{"a":1,"b":2}', timeout=60)
    print(json.loads(reply.data)["sum"])
    await nc.close()


asyncio.run(main())

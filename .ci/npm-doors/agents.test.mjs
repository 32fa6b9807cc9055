// @openai/agents: it speaks the Responses API by default.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Agent, hostedMcpTool, OpenAIConversationsSession, OpenAIResponsesCompactionSession, run, setDefaultOpenAIClient, setTracingDisabled, tool } from '@openai/agents'
import OpenAI from 'openai'
import { z } from 'zod'
import { fails, script, seen, v1 } from './helpers.mjs'

const client = new OpenAI({ baseURL: v1, apiKey: 'the-caller', maxRetries: 0, timeout: 20_000 })
setDefaultOpenAIClient(client)
setTracingDisabled(true)
const weather = tool({ name: 'weather', description: 'x', parameters: z.object({ city: z.string() }), execute: ({ city }) => `${city} is sunny` })

test('plain and streamed', async () => {
  const agent = new Agent({ name: 'a', instructions: 'be kind', model: 'demo/echo' })
  assert.equal((await run(agent, 'hello onion')).finalOutput, 'hello onion')
  const s = await run(agent, 'hello onion', { stream: true })
  for await (const _ of s) { /* to its end */ }
  assert.equal(s.finalOutput, 'hello onion')
})

test('tools, plain and streamed', async () => {
  const agent = new Agent({ name: 'a', model: 'demo/tools', tools: [weather] })
  assert.equal((await run(agent, 'Paris')).finalOutput, 'Paris is sunny')
  const s = await run(agent, 'Paris', { stream: true })
  await s.completed
  assert.equal(s.finalOutput, 'Paris is sunny')
})

test('a handoff', async () => {
  const second = new Agent({ name: 'second', model: 'demo/echo' })
  const first = new Agent({ name: 'first', model: 'demo/tools', handoffs: [second] })
  assert.equal((await run(first, 'over to you')).lastAgent.name, 'second')
})

test('a session in a conversation', async () => {
  const session = new OpenAIConversationsSession({ client })
  const agent = new Agent({ name: 'a', model: 'demo/echo' })
  await run(agent, 'one', { session })
  assert.equal((await run(agent, 'two', { session })).finalOutput, 'two')
  assert.equal((await session.getItems()).length, 4)
  await session.clearSession()
})

test('a session that is compacted', { skip: !script && 'no upstream' }, async () => {
  const model = 'gpt-compact' // the session takes models of that name only
  const body = JSON.stringify({ id: 'c', object: 'chat.completion', created: 1, model, choices: [{ index: 0, message: { role: 'assistant', content: 'onions' }, finish_reason: 'stop' }], usage: { prompt_tokens: 2, completion_tokens: 1, total_tokens: 3 } })
  await script(model, [{ body }])
  const session = new OpenAIResponsesCompactionSession({ client, model, shouldTriggerCompaction: () => true })
  const agent = new Agent({ name: 'a', model })
  const types = async () => (await session.getItems()).map(i => i.type)
  assert.equal((await run(agent, 'one', { session })).finalOutput, 'onions')
  assert.deepEqual(await types(), ['message', 'compaction'], 'the runner has it compacted after the turn')
  assert.equal((await run(agent, 'two', { session })).finalOutput, 'onions')
  assert.deepEqual(await types(), ['message', 'compaction', 'message', 'message'])
  assert.match(`${(await seen(model)).at(-1)}`, /Summary of the conversation so far/)
})

test('a tool that waits for a yes: hosted MCP with approval, plain and streamed', async () => {
  const hosted = hostedMcpTool({ serverLabel: 'shallot', serverUrl: 'http://unused.invalid', requireApproval: 'always' })
  const agent = new Agent({ name: 'a', model: 'agent/clerk', tools: [hosted] })
  for (const stream of [false, true]) {
    let r = await run(agent, 'add', { stream })
    if (stream) await r.completed
    assert.deepEqual(r.interruptions.map(i => i.rawItem.name), ['add'])
    r.state.approve(r.interruptions[0])
    r = await run(agent, r.state, { stream })
    if (stream) await r.completed
    assert.deepEqual(r.interruptions, [])
    assert.match(r.finalOutput, /^{"sum":/)
  }
})

test('errors', async () => {
  assert.match(`${await fails(() => run(new Agent({ name: 'a', model: 'demo/fail' }), 'fail 429'))}`, /429/)
})

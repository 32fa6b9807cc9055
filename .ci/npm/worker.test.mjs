// The tool worker of examples/tool-node: it is found, serves calls, and is killed in the middle of one.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { after, before, test } from 'node:test'
import { connect } from '@nats-io/transport-node'
import { base, natsURL, until } from './helpers.mjs'

const program = new URL('../../examples/tool-node/tool.js', import.meta.url).pathname
const started = []
let nc
const asked = [] // the requests that workers got
before(async () => {
  nc = await connect({ servers: natsURL })
  nc.subscribe('tools.word_count', { callback: (_, m) => asked.push(m.string()) })
})
after(async () => {
  started.forEach(p => p.kill('SIGKILL'))
  await nc?.close()
})

async function worker() {
  const p = spawn(process.execPath, [program], { env: { ...process.env, NATS_URL: natsURL }, stdio: ['ignore', 'pipe', 'inherit'] })
  started.push(p)
  await once(p.stdout, 'data')
  return p
}

const call = async (tool, args) => {
  const r = await fetch(`${base}/v1/tools/${tool}/call`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(args) })
  return { status: r.status, fault: r.headers.get('Shallot-Fault'), body: await r.json() }
}

/** Calls the tool, kills the worker that has the call, and starts another one. */
async function killed(tool) {
  const first = await worker()
  const before = asked.length
  const end = call(tool, { text: 'peel by peel', ms: 1000 })
  await until('it is asked', () => asked.length > before)
  first.kill('SIGKILL')
  const second = await worker()
  const got = { ...await end, times: asked.length - before, second: second.pid }
  second.kill('SIGKILL')
  return got
}

test('a worker in Node is found by its metadata and serves calls', { timeout: 30_000 }, async () => {
  const p = await worker()
  await until('it is offered', async () => (await (await fetch(`${base}/v1/tools`)).json()).data.some(t => t.function.name === 'word_count'), 15_000)
  assert.deepEqual(await call('word_count', { text: 'peel by peel', ms: '5' }), { status: 200, fault: null, body: { words: 3, pid: p.pid } })
  p.kill('SIGKILL')
})

test('killed in mid-call: an idempotent tool completes elsewhere', { timeout: 30_000 }, async () => {
  const { status, body, times, second } = await killed('counted')
  assert.deepEqual({ status, body, times }, { status: 200, body: { words: 3, pid: second }, times: 2 })
})

test('killed in mid-call: one that may not run twice ends as outcome_unknown', { timeout: 30_000 }, async () => {
  const { status, fault, body, times } = await killed('counted_once')
  assert.deepEqual({ status, fault, times }, { status: 424, fault: 'outcome_unknown', times: 1 })
  assert.match(body.error.message, /may have been carried out.*check with the tool 'counted'/)
})

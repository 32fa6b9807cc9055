// A remote stage in Node (examples/stage-node) behind a gateway whose configuration names it; see ../clients.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { after, test } from 'node:test'

const url = process.env.SHALLOT_URL
let program
async function start() {
  program = spawn(process.execPath, ['stage.js'], { cwd: 'examples/stage-node', env: { ...process.env, NATS_URL: process.env.SHALLOT_NATS_URL }, stdio: ['ignore', 'pipe', 'inherit'] })
  await once(program.stdout, 'data')
}
after(() => program?.kill('SIGKILL'))

async function ask(content, headers = {}) {
  const body = `{"model":"demo/echo","seed":9007199254740993,"messages":[{"role":"user","content":${JSON.stringify(content)}}]}`
  const r = await fetch(`${url}/v1/chat/completions`, { method: 'POST', headers: { 'Content-Type': 'application/json', ...headers }, body })
  return { status: r.status, path: r.headers.get('shallot-path'), stage: r.headers.get('shallot-stage'), body: await r.json() }
}

test('a call waits for the program and is edited on both sides', async () => {
  const absent = await ask('hello', { 'Shallot-Timeout': '1s' })
  assert.equal(absent.status, 503)
  assert.equal(absent.body.error.code, 'stage_unavailable')
  assert.match(absent.body.error.message, /house-rules.*shallot\.v1\.stage\.model\.house-rules/)
  const waits = ask('hello')
  await start()
  const got = await waits
  assert.equal(got.status, 200, JSON.stringify(got.body))
  assert.match(got.path, /house-rules\.beforeModel.*house-rules\.afterModel/)
})

test('the program refuses, with a code of the closed list', async () => {
  const got = await ask('my key is sk-abcdefghijklmnopqrst')
  assert.equal(got.status, 422)
  assert.equal(got.body.error.code, 'content_policy_violation')
  assert.equal(got.stage, 'house-rules')
})

test('killed and back: no call is lost', async () => {
  program.kill('SIGKILL')
  await once(program, 'exit')
  const waits = [1, 2, 3, 4].map(n => ask(`hello ${n}`))
  await start()
  for (const got of await Promise.all(waits)) assert.equal(got.status, 200, JSON.stringify(got.body))
})

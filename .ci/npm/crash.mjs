// Processes die while calls run: kill -9, no goodbye. Each call ends once, with its own right answer, and the client
// sees no failure. VICTIMS holds the process ids; ../clients starts another process beside each.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { client, reply, script, seen, until, user, words } from './helpers.mjs'

const victims = (process.env.VICTIMS ?? '').split(' ').filter(Boolean).map(Number)

test('workers die under load: no call is lost', { timeout: 80_000 }, async () => {
  assert.ok(victims.length >= 3)
  const calls = await Promise.all(Array.from({ length: 120 }, async (_, i) => {
    const model = await script('crash', i % 3 ? { body: reply(`answer ${i}`), wait: 400 } : { chunks: words(`stream ${i}`), wait: 400 })
    return { i, model }
  }))
  const one = async ({ i, model }) => {
    if (i % 3) return (await client({ timeout: 60_000 }).chat.completions.create({ model, messages: user('x') })).choices[0].message.content
    return client({ timeout: 60_000 }).chat.completions.stream({ model, messages: user('x') }).finalContent()
  }
  const begin = Date.now()
  const running = Promise.allSettled(calls.map(async c => {
    await new Promise(done => setTimeout(done, c.i * 15))
    return one(c)
  }))
  for (const pid of victims) {
    await new Promise(done => setTimeout(done, 400))
    process.kill(pid, 'SIGKILL')
  }
  const ends = await running
  console.log(`${Date.now() - begin} ms`)
  const wrong = ends.flatMap((e, i) => (e.value === `${i % 3 ? 'answer' : 'stream'} ${i}` ? [] : [`${i}: ${e.value ?? e.reason}`]))
  assert.deepEqual(wrong, [])
  for (const c of calls) {
    const n = (await seen(c.model)).map(r => r.headers['idempotency-key'])
    assert.equal(new Set(n).size, 1, 'a call that is run again keeps its upstream key')
  }
})

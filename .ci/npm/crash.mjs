// Processes die while calls run: kill -9, no goodbye. Each call ends once, with its own right answer, and the client
// sees no failure. VICTIMS holds the process ids by name; ../clients has started another process beside most of them.
// LAST_OF_A_STAGE and NATS_SERVER are the commands of those that have none and are started again here.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { after, test } from 'node:test'
import { base, client, reply, script, seen, until, user, words } from './helpers.mjs'

const victims = Object.fromEntries(process.env.VICTIMS.trim().split(' ').map(v => v.split('=')).map(([name, pid]) => [name, Number(pid)]))
const started = []
after(() => started.forEach(p => p.kill('SIGTERM')))

const kill = name => process.kill(victims[name], 'SIGKILL')
const start = command => {
  const [file, ...args] = command.split(' ')
  started.push(spawn(file, args, { stdio: 'ignore' }))
}
const pause = ms => new Promise(done => setTimeout(done, ms))

/** Runs calls, a third of them streams, one every 15 ms, and meanwhile does the mischief. */
async function load(count, mischief) {
  const calls = await Promise.all(Array.from({ length: count }, async (_, i) => ({ i, text: i % 3 ? `answer ${i}` : `a stream ${i}` })))
  for (const c of calls) c.model = await script('crash', c.i % 3 ? { body: reply(c.text), wait: 400 } : { chunks: words(c.text), wait: 400 })
  const one = async ({ i, model }) => {
    await pause(i * 15)
    const request = { model, messages: user('x') }
    if (i % 3) return (await client({ timeout: 60_000 }).chat.completions.create(request)).choices[0].message.content
    return client({ timeout: 60_000 }).chat.completions.stream(request).finalContent()
  }
  const [ends] = await Promise.all([Promise.allSettled(calls.map(one)), mischief()])
  assert.deepEqual(ends.flatMap((e, i) => (e.value === calls[i].text ? [] : [`${i}: ${e.value ?? e.reason}`])), [])
  for (const c of calls) {
    const keys = new Set((await seen(c.model)).map(r => r.headers['idempotency-key']))
    assert.equal(keys.size, 1, 'a call that is run again keeps its upstream key')
  }
}

test('one of two workers of each kind dies: no call is lost', { timeout: 60_000 }, () => load(120, async () => {
  for (const name of ['audit-too', 'fallback-too', 'model-too', 'entry-too']) {
    await pause(400)
    kill(name)
  }
}))

test('the only worker of a stage dies and comes back: its calls wait for it', { timeout: 60_000 }, () => load(60, async () => {
  await pause(400)
  kill('logging')
  await pause(1000)
  start(process.env.LAST_OF_A_STAGE)
}))

test('the NATS server dies and comes back: calls that were accepted end right', { timeout: 60_000 }, async () => {
  // Accepted before the server dies: all of them start at once, and the model takes its time.
  const models = await Promise.all(Array.from({ length: 40 }, (_, i) => script('server', { body: reply(`after all ${i}`), wait: 1500 })))
  const running = Promise.allSettled(models.map(async model => (await client({ timeout: 50_000 }).chat.completions.create({ model, messages: user('x') })).choices[0].message.content))
  for (const m of models) await until('the model is asked', async () => (await seen(m)).length)
  kill('nats-server')
  await pause(500)
  start(process.env.NATS_SERVER)
  assert.deepEqual((await running).map(e => e.value ?? `${e.reason}`), models.map((_, i) => `after all ${i}`))
  await until('ready', async () => (await fetch(`${base}/readyz`)).ok, 10_000)
})

// Codex speaks the Responses API and nothing else, Claude Code the Messages API. Both run without a terminal here, in a
// home of their own; a client whose binary is not there for this machine is left out.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'

const base = process.env.SHALLOT_URL ?? assert.fail('SHALLOT_URL is not set; run .ci/clients')
const home = mkdtempSync(join(homedir(), '.shallot-terminal-'))
after(() => rmSync(home, { recursive: true, force: true }))
mkdirSync(join(home, 'work'))
mkdirSync(join(home, '.codex'))
writeFileSync(join(home, '.codex', 'config.toml'), `model = "demo/echo"
model_provider = "shallot"
[model_providers.shallot]
name = "shallot"
base_url = "${base}/v1"
wire_api = "responses"
env_key = "CALLER_KEY"
request_max_retries = 0
stream_max_retries = 0
`)

const modules = new URL('node_modules/', import.meta.url).pathname
const system = `${process.platform}-${process.arch}`
const claude = join(modules, '@anthropic-ai', `claude-code-${system}`, 'claude')
const codex = join(modules, '@openai', 'codex', 'bin', 'codex.js')

/** Runs a program in the home and returns what it wrote. */
const run = (program, args, env = {}) => new Promise((resolve, reject) => {
  const child = spawn(program, args, { cwd: join(home, 'work'), stdio: ['ignore', 'pipe', 'pipe'], timeout: 60_000,
    env: { PATH: process.env.PATH, HOME: home, ...env } })
  const out = { stdout: '', stderr: '' }
  for (const name of ['stdout', 'stderr']) child[name].on('data', d => { out[name] += d })
  child.on('error', reject)
  child.on('close', code => resolve({ ...out, code }))
})

test('codex: a turn, one with a command, the next in the same thread, a failure', { skip: !existsSync(join(modules, '@openai', `codex-${system}`)) }, async () => {
  const ask = async (...args) => {
    const r = await run(process.execPath, [codex, 'exec', '--json', '--skip-git-repo-check', ...args], { CODEX_HOME: join(home, '.codex'), CALLER_KEY: 'the-caller' })
    return r.stdout.split('\n').filter(l => l.startsWith('{')).map(l => JSON.parse(l))
  }
  const said = events => events.filter(e => e.type === 'item.completed' && e.item.type === 'agent_message').map(e => e.item.text).join('')
  const first = await ask('hello onion')
  assert.match(said(first), /hello onion$/, JSON.stringify(first))
  assert.ok(first.at(-1).usage.input_tokens > 0)
  assert.equal(said(await ask('resume', '--last', 'second')), 'second')
  const tool = await ask('-m', 'demo/tools', 'true')
  assert.ok(tool.some(e => e.item?.type === 'command_execution'), JSON.stringify(tool))
  assert.equal(tool.at(-1).type, 'turn.completed')
  const failed = await ask('-m', 'demo/fail', 'fail 400')
  assert.equal(failed.at(-1).type, 'turn.failed', JSON.stringify(failed))
})

test('claude code: a turn, the next in the same session, a failure', { skip: !existsSync(claude) }, async () => {
  const ask = async (model, ...args) => {
    const r = await run(claude, ['-p', '--output-format', 'json', ...args], { ANTHROPIC_BASE_URL: base, ANTHROPIC_AUTH_TOKEN: 'the-caller', ANTHROPIC_MODEL: model,
      ANTHROPIC_SMALL_FAST_MODEL: model, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1', CLAUDE_CODE_MAX_RETRIES: '0' })
    return JSON.parse(r.stdout.split('\n').find(l => l.startsWith('{')) ?? assert.fail(r.stdout + r.stderr))
  }
  const first = await ask('demo/echo', 'hello onion')
  assert.match(first.result, /hello onion$/, JSON.stringify(first))
  assert.ok(first.usage.output_tokens > 0)
  assert.match((await ask('demo/echo', '--continue', 'second')).result, /second$/)
  const failed = await ask('demo/fail', 'fail 400')
  assert.equal(failed.is_error, true, JSON.stringify(failed))
})

// An OpenAI-compatible upstream that does what a test tells it, keeps every byte that it received, and judges every
// request by rules that hold always. A script belongs to a model's name; tests give each call a name of its own. A
// standby model is asked under the same X-Request-Id as the primary, and so finds the script of the same test.
//
//   POST /control/script {model, answers, standby: {name: answers}}   GET /control/seen?model=   GET /control/faults
//
// An answer: {status, headers, body | chunks, wait (ms before anything), pace (ms between chunks), bytes (write the
// chunks in pieces of so many bytes),
// end: "done" ([DONE]) | "close" (no [DONE]) | "cut" (connection reset) | "hang"}. The last answer of a list repeats.
import http from 'node:http'

const key = process.env.UPSTREAM_KEY ?? 'canary'
const scripts = new Map() // by model
const primary = new Map() // model of a request id
const seen = []
const faults = []

// What the gateway may send upstream. Anything else is a leak of its own or of its caller's headers.
const headersKnown = new Set(['host', 'user-agent', 'content-type', 'content-length', 'accept', 'accept-encoding',
  'authorization', 'x-request-id', 'traceparent', 'tracestate', 'idempotency-key', 'connection', 'cache-control'])

function judge(req, body) {
  const where = `${req.method} ${req.url} ${req.headers['x-request-id'] ?? ''}`
  const fault = text => faults.push(`${where}: ${text}`)
  if (req.headers.authorization !== `Bearer ${key}`) fault(`authorization is ${req.headers.authorization}`)
  for (let i = 0; i < req.rawHeaders.length; i += 2) {
    const name = req.rawHeaders[i].toLowerCase()
    if (!headersKnown.has(name)) fault(`unknown header ${name}: ${req.rawHeaders[i + 1]}`)
    if (req.rawHeaders.filter((h, j) => j % 2 === 0 && h.toLowerCase() === name).length > 1) fault(`header ${name} comes twice`)
  }
  if (req.method !== 'POST') return
  if (req.headers['content-type'] !== 'application/json') fault(`content type ${req.headers['content-type']}`)
  if (req.headers['content-length'] !== String(body.length)) fault(`content length ${req.headers['content-length']} for ${body.length} bytes`)
  if (!req.headers['idempotency-key']) fault('no Idempotency-Key')
  if (body.includes(key)) fault('the body holds our key')
}

const json = (res, status, value, headers = {}) => {
  const body = typeof value === 'string' ? value : JSON.stringify(value)
  res.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body), ...headers })
  res.end(body)
}

const pause = ms => new Promise(done => setTimeout(done, ms))

async function answer(a, req, res, record) {
  if (a.wait) await pause(a.wait)
  if (res.destroyed) return
  const headers = { 'x-request-id': `up-${record.n}`, ...a.headers }
  if (!a.chunks && a.end !== 'hang') {
    if (a.end === 'cut') {
      res.writeHead(a.status ?? 200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(a.body) + 100, ...headers })
      return void res.write(a.body, () => setTimeout(() => req.socket.resetAndDestroy(), 30))
    }
    return json(res, a.status ?? 200, a.body, headers)
  }
  if (a.chunks) {
    res.writeHead(a.status ?? 200, { 'content-type': 'text/event-stream', ...headers })
    res.flushHeaders()
  }
  for (const chunk of a.chunks ?? []) {
    if (res.destroyed) return
    const event = Buffer.from(chunk.startsWith('{') ? `data: ${chunk}\n\n` : chunk)
    for (let i = 0; i < event.length; i += a.bytes ?? event.length) {
      res.write(event.subarray(i, i + (a.bytes ?? event.length)))
      if (a.bytes) await new Promise(setImmediate)
    }
    record.written++
    if (a.pace) await pause(a.pace)
  }
  switch (a.end ?? 'done') {
    case 'done': return void res.end('data: [DONE]\n\n')
    case 'close': return void res.end()
    case 'cut': return void setTimeout(() => req.socket.resetAndDestroy(), 30) // after the chunks have left
  }
}

function chat(req, res, raw) {
  const body = raw.toString()
  const { model } = JSON.parse(body)
  const id = req.headers['x-request-id']
  if (scripts.has(model)) primary.set(id, model)
  const owner = primary.get(id) ?? model
  const record = { n: seen.length + 1, model, owner, body: raw.toString('base64'), headers: req.headers, at: Date.now(), written: 0, closed: 0 }
  seen.push(record)
  res.on('close', () => { if (!res.writableFinished) record.closed = Date.now() })
  const script = scripts.get(owner)
  const answers = model === owner ? script?.answers : script?.standby?.[model]
  if (!answers) return json(res, 404, { error: { message: `no model ${model}`, type: 'invalid_request_error', param: null, code: 'model_not_found' } })
  script.count ??= {}
  const turn = script.count[model] = (script.count[model] ?? 0) + 1
  return answer(answers[Math.min(turn, answers.length) - 1], req, res, record)
}

async function control(req, res, url, body) {
  switch (url.pathname) {
    case '/control/script': {
      const s = JSON.parse(body)
      scripts.set(s.model, s)
      return json(res, 200, {})
    }
    case '/control/seen': return json(res, 200, seen.filter(r => r.owner === url.searchParams.get('model')))
    case '/control/faults': return json(res, 200, faults)
  }
  return json(res, 404, {})
}

const models = ['up/first', 'up/deep/er', 'second'].map((id, i) => ({ id, object: 'model', created: 1700000000 + i, owned_by: 'upstream' }))

const server = http.createServer(async (req, res) => {
  const parts = []
  for await (const part of req) parts.push(part)
  const body = Buffer.concat(parts)
  const url = new URL(req.url, 'http://upstream')
  if (url.pathname.startsWith('/control/')) return control(req, res, url, body)
  judge(req, body)
  if (req.method === 'GET' && url.pathname === '/v1/models') return json(res, 200, { object: 'list', data: models })
  if (req.method === 'POST' && url.pathname === '/v1/chat/completions') return chat(req, res, body)
  faults.push(`${req.method} ${req.url}: no such path`)
  json(res, 404, { error: { message: 'no such path' } })
})
server.requestTimeout = 0
server.listen(Number(process.argv[2] ?? 0), '127.0.0.1', () => console.log(server.address().port))

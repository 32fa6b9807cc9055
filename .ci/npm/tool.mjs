// A tool worker as anybody would write one with npm's NATS client. Its side effect is a line in a file.
// TestAtMostOnceUnderKills of pipeline/systemtest/tools kills it in the middle of its work.
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { connect } from '@nats-io/transport-node'

const nc = await connect({ servers: process.env.SHALLOT_TEST_NATS })
for (const name of ['once', 'many']) {
  nc.subscribe(`work.${name}`, {
    queue: 'workers',
    callback: async (err, m) => {
      if (err) return
      await sleep(20) // work to be killed in
      appendFileSync(process.env.SHALLOT_TEST_FILE, `${m.headers.get('Shallot-Call')}\n`)
      await sleep(20)
      m.respond('{"ok":true}')
    },
  })
}
await nc.flush()
console.log('ready')
process.stdin.resume().on('end', () => process.exit()) // it ends with the test, however the test ends

// Runs after all tests: no request upstream may have broken the rules that hold always.
import { faults } from './helpers.mjs'

const all = await faults()
for (const f of all.slice(0, 20)) console.error('upstream:', f)
process.exit(all.length ? 1 : 0)

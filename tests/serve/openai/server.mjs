// server.mjs: starts `weir serve` for the tests here and reads its counters. WEIR names the binary.
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import path from "node:path";
import OpenAI from "openai";

const root = process.env.WEIR_SOURCE_ROOT ?? path.resolve(import.meta.dirname, "../../..");

export async function startServer(...options) {
  const weir = process.env.WEIR ?? path.join(root, "build/weir");
  const model = path.join(root, "models/tiny-k3");
  const child = spawn(weir, ["serve", "--model", model, "--port", "0", ...options], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  let log = "";
  child.stderr.on("data", (d) => (log = (log + d).slice(-65536)));
  const exited = new Promise((resolve) => child.on("close", (code) => resolve(code)));
  const url = await new Promise((resolve, reject) => {
    createInterface({ input: child.stdout }).on("line", (line) => {
      if (line.startsWith("ready: ")) resolve(line.slice(7));
    });
    exited.then((code) => reject(new Error(`weir serve ended with ${code}: ${log}`)));
  });
  return {
    url,
    log: () => log,
    client: (more = {}) =>
      new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 120000, ...more }),
    // Sum over the series of a metric; NaN when there is none.
    async metric(name) {
      const text = await (await fetch(`${url}/metrics`)).text();
      const lines = text.split("\n").filter((l) => l.startsWith(`${name}{`) || l.startsWith(`${name} `));
      if (lines.length === 0) return NaN;
      return lines.reduce((sum, l) => sum + Number(l.slice(l.lastIndexOf(" ") + 1)), 0);
    },
    rssKib: () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, "utf8"))[1]),
    async stop() {
      child.kill("SIGTERM");
      const code = await exited;
      if (code !== 0) throw new Error(`exit ${code} after SIGTERM: ${log}`);
    },
  };
}

// Nothing runs, nothing waits, and both pools are empty again; throws what is left otherwise.
export async function assertIdle(server, seconds = 10) {
  const names = ["vllm:num_requests_running", "vllm:num_requests_waiting", ...poolMetrics];
  let left;
  for (const end = Date.now() + seconds * 1000; Date.now() < end; ) {
    const values = await Promise.all(names.map((n) => server.metric(n)));
    left = names.map((n, i) => `${n} ${values[i]}`);
    if (values.every((v) => v === 0)) return;
    await new Promise((r) => setTimeout(r, 20));
  }
  throw new Error(`not idle: ${left.join(", ")}`);
}

export const poolMetrics = ["weir_kv_pages_used", "weir_state_slots_used"];

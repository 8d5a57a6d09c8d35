// A worker in another language: it has the published .proto, a gRPC library, and nothing of Holdfast.
//
// usage: node worker.js CONFIG.json
// The configuration names the .proto file, the server, its CA, the token, the topic and how many jobs to run at once.
// Every job adds its numbers; one that is told to fails. The worker ends once its standard input does.
"use strict";

const fs = require("fs");
const path = require("path");

const config = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const library = (name) => require(path.join(config.modules, name));
const grpc = library("@grpc/grpc-js");
const loader = library("@grpc/proto-loader");

const definition = loader.loadSync(config.proto, {
  keepCase: true,
  longs: String,
  defaults: false,
  oneofs: true,
  includeDirs: [path.dirname(config.proto)],
});
const { Jobs } = grpc.loadPackageDefinition(definition).holdfast.jobs.v1;
const client = new Jobs(config.target, grpc.credentials.createSsl(fs.readFileSync(config.ca)));
const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${config.token}`);

const worker = `node-${process.pid}-${Date.now()}`;
const held = new Map(); // job_id:attempt -> assignment
let isStopping = false;
let stream = null;

const retried = new Set([grpc.status.UNAVAILABLE, grpc.status.DEADLINE_EXCEEDED]);
const say = (message) => process.stdout.write(`${message}\n`);
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function call(method, request) {
  return new Promise((resolve, reject) => {
    const deadline = Date.now() + 5000;
    client[method](request, metadata, { deadline }, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

// Rule 3: a report is repeated until it is answered.
async function report(assignment, result) {
  const { job_id, attempt, receipt } = assignment;
  for (;;) {
    try {
      return await call("ReportResult", { worker, report: { job_id, attempt, receipt, ...result } });
    } catch (error) {
      if (!retried.has(error.code)) {
        say(`refused ${job_id}: ${grpc.status[error.code]}`);
        return null;
      }
      await pause(100);
    }
  }
}

function handle(assignment) {
  const { numbers, fails } = JSON.parse(assignment.payload);
  if (fails) {
    throw new Error(`told to fail, attempt ${assignment.attempt}`);
  }
  return numbers.reduce((sum, number) => sum + number, 0);
}

async function run(assignment) {
  const key = `${assignment.job_id}:${assignment.attempt}`;
  held.set(key, assignment);
  let result;
  try {
    result = { succeeded: { output: JSON.stringify({ sum: handle(assignment) }) } };
  } catch (error) {
    result = { failed: { error: error.message } };
  }
  await beat(); // so that even a short job is beaten for
  if (held.has(key)) {
    await report(assignment, result);
    held.delete(key);
    say(`ended ${key}`);
  }
  if (stream) {
    stream.write({ grant: { credit: 1 } });
  }
}

// Rules 1 and 2: beat for what is held, and let go of what no longer is.
async function beat() {
  const jobs = [...held.values()].map(({ job_id, attempt, receipt }) => ({ job_id, attempt, receipt }));
  if (jobs.length === 0) {
    return;
  }
  try {
    const answer = await call("Heartbeat", { worker, jobs });
    for (const state of answer.jobs) {
      if (!state.is_held) {
        held.delete(`${state.job_id}:${state.attempt}`);
      }
    }
    say(`beat ${jobs.length}`);
  } catch (error) {
    say(`beat failed: ${error.message}`);
  }
}

function open() {
  if (isStopping) {
    return;
  }
  const opened = client.StreamJobs(metadata);
  stream = opened;
  const credit = Math.max(0, config.capacity - held.size);
  opened.write({ start: { worker, topics: [config.topic], credit } });
  opened.on("data", (message) => (message.assignment ? run(message.assignment) : beat()));
  opened.on("error", (error) => {
    say(`stream ended: ${grpc.status[error.code]} ${error.details}`);
    stream = null;
    if (error.code === grpc.status.UNAUTHENTICATED) {
      process.exit(3);
    }
    setTimeout(open, 100);
  });
}

async function stop() {
  isStopping = true;
  if (stream) {
    stream.end();
  }
  while (held.size > 0) {
    await pause(10);
  }
  process.exit(0);
}

const beats = setInterval(beat, config.beat_milliseconds);
beats.unref();
process.stdin.on("end", stop).resume();
open();
say(`worker ${worker}`);

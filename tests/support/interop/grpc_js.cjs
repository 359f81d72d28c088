// Calls of @grpc/grpc-js: node grpc_js.cjs ADDRESS PROTOS prints what came of each as one JSON object.
"use strict";
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, protos] = process.argv.slice(2);
const definition = loader.loadSync("laya/v1/inference.proto", {
  includeDirs: [protos], keepCase: true, longs: Number, enums: String, defaults: true,
});
const { Inference } = grpc.loadPackageDefinition(definition).laya.v1;

const ask = (tokens, more = {}) => ({
  model: "sim", text: "hi", sampling: { max_tokens: tokens, ignore_eos: true }, ...more,
});
const soon = (seconds) => ({ deadline: Date.now() + seconds * 1000 });

function unary(client, method, request, options = soon(20), metadata = new grpc.Metadata()) {
  return new Promise((resolve) => {
    const heard = {};
    const call = client[method](request, metadata, options, (error, answer) => {
      heard.code = error ? error.code : 0;
      heard.details = error ? error.details : "";
      heard.bin = error && error.metadata.get("grpc-status-details-bin").length > 0;
      heard.answer = answer;
      setImmediate(() => resolve(heard)); // the status event comes right behind this one
    });
    call.on("metadata", (m) => { heard.node = String(m.get("laya-node")[0] || ""); });
  });
}

function stream(client, method, request, { options = soon(20), cancelAfter = 0 } = {}) {
  return new Promise((resolve) => {
    const heard = { messages: 0, text: "", code: -1 };
    const call = client[method](request, new grpc.Metadata(), options);
    call.on("data", (m) => {
      heard.messages += 1;
      heard.text += m.text || "";
      if (heard.messages === cancelAfter) call.cancel();
    });
    call.on("error", () => {});
    call.on("status", (s) => { heard.code = s.code; resolve(heard); });
  });
}

async function main() {
  const client = new Inference(address, grpc.credentials.createInsecure());
  const out = {};
  out.models = (await unary(client, "ListModels", {})).answer.models.map((m) => m.name);
  const complete = await unary(client, "Complete", { request: ask(12) });
  out.complete = { code: complete.code, text: complete.answer.completions[0].text, node: complete.node };
  out.generate = await stream(client, "Generate", ask(12));
  out.chat = await stream(client, "Chat", {
    model: "sim", messages: [{ role: "user", content: "who?" }], sampling: { max_tokens: 8 },
  });
  out.unknown = await unary(client, "Complete", { request: ask(1, { model: "nope" }) });
  out.late = await stream(client, "Generate", ask(4000), { options: soon(0.3) });
  out.cancelled = await stream(client, "Generate", ask(4000), { cancelAfter: 3 });
  const many = await Promise.all(Array.from({ length: 40 }, () => stream(client, "Generate", ask(5))));
  out.many = many.map((m) => m.code);
  const large = await unary(client, "Complete", { request: ask(1, { text: "word ".repeat(3000) }) });
  out.large = large.code;
  client.close();
  console.log(JSON.stringify(out));
}

main().catch((error) => { console.error(error); process.exit(1); });

// Calls of the openai package: node openai_js.cjs BASE_URL prints what came of each as one JSON object.
"use strict";
const { OpenAI } = require("openai");

async function collect(stream) {
  const heard = { chunks: 0, text: "", finish: "" };
  for await (const chunk of stream) {
    heard.chunks += 1;
    for (const choice of chunk.choices) {
      heard.text += (choice.delta ? choice.delta.content : choice.text) || "";
      heard.finish = choice.finish_reason || heard.finish;
    }
  }
  return heard;
}

async function main() {
  const client = new OpenAI({ baseURL: process.argv[2], apiKey: "unused", maxRetries: 0, timeout: 20000 });
  const out = {};
  out.models = (await client.models.list()).data.map((m) => m.id);
  const ask = { model: "sim", messages: [{ role: "user", content: "tell me" }], max_tokens: 12, seed: 3 };
  const whole = await client.chat.completions.create(ask);
  out.chat = { text: whole.choices[0].message.content, finish: whole.choices[0].finish_reason };
  out.streamed = await collect(await client.chat.completions.create({ ...ask, stream: true }));
  out.completion = await collect(
    await client.completions.create({ model: "sim", prompt: "once", max_tokens: 5, stream: true }));
  try {
    await client.chat.completions.create({ ...ask, model: "nope" });
  } catch (error) {
    out.unknown = { status: error.status, kind: error.constructor.name };
  }
  const left = await client.chat.completions.create({ ...ask, max_tokens: 4000, stream: true });
  for await (const _ of left) break; // leaving the loop aborts the request
  out.many = (await Promise.all(Array.from({ length: 20 }, () => client.chat.completions.create(ask))))
    .map((a) => a.choices[0].message.content === out.chat.text);
  console.log(JSON.stringify(out));
}

main().catch((error) => { console.error(error); process.exit(1); });

// The same as programs.py for transformers.js in Node: `node programs.mjs ORDERS ANSWERS`, run where its packages lie.
// Lines of huggingface.co/docs/transformers.js: pipelines, and "Use custom models" of its README for a folder of one's own.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, dirname } from "node:path";
import { pathToFileURL } from "node:url";

const place = createRequire(`${process.cwd()}/`).resolve("@huggingface/transformers");
const { env, pipeline } = await import(pathToFileURL(place).href);
env.allowRemoteModels = false;

async function opened(task, folder) {
  env.localModelPath = dirname(folder);
  return await pipeline(task, basename(folder));
}

const programs = {
  async js(folder, text) {
    const generator = await opened("text-generation", folder);
    return (await generator(text, { max_new_tokens: 48 }))[0].generated_text;
  },
  async js_chat(folder, text) {
    const generator = await opened("text-generation", folder);
    return (await generator([{ role: "user", content: text }], { max_new_tokens: 48 }))[0].generated_text.at(-1).content;
  },
  async js_translate(folder, text) {
    const generator = await opened("text2text-generation", folder);
    return (await generator(text, { max_new_tokens: 48 }))[0].generated_text;
  },
  async js_classify(folder, text) {
    const classifier = await opened("sentiment-analysis", folder);
    return (await classifier(text))[0];
  },
  async js_embed(folder, text) {
    const extractor = await opened("feature-extraction", folder);
    return (await extractor([text], { pooling: "mean", normalize: true })).tolist()[0];
  },
};

const answers = [];
for (const [name, folder, text] of JSON.parse(readFileSync(process.argv[2]))) {
  try {
    answers.push(await programs[name](folder, text));
  } catch (error) {
    answers.push({ raised: String(error), at: error.stack });
  }
}
writeFileSync(process.argv[3], JSON.stringify(answers));

// Runs the model of this folder by transformers.js, which is expected in ../node_modules: nothing is loaded from anywhere else, but for
// what the page's address names: ?from=ADDRESS/my-run/&version=latest takes the model from where ckptd delivered it.
// To use it in your own page, see `load` and `run`.
import { open } from "./hosting.js";

const PACKAGES = "../node_modules";
const facts = JSON.parse(document.getElementById("facts").textContent);
const form = document.getElementById("form");
const button = form.querySelector("button");
const answer = document.getElementById("answer");
const progress = document.getElementById("progress");

let library = null;
let pipe = null;
let template = false;

function show(text, wrong = false) {
  const status = document.getElementById("status");
  status.textContent = text;
  status.className = wrong ? "wrong" : "";
}

function told(error) {
  return String(error?.message ?? error).split("\n")[0];
}

async function found() {
  if (location.protocol === "file:") {
    throw new Error("A browser runs this page only from a web server. In the folder above this one: python3 -m http.server");
  }
  try {
    return await import(`${PACKAGES}/@huggingface/transformers/dist/transformers.min.js`);
  } catch (error) {
    const place = new URL(PACKAGES, location).pathname;
    throw new Error(
      `transformers.js is not at ${place}. In the folder above this one, run: npm install --ignore-scripts @huggingface/transformers@${facts.release}\n(${told(error)})`,
    );
  }
}

async function load() {
  library = await found();
  const { env } = library;
  env.allowRemoteModels = false;
  env.allowLocalModels = true;
  env.backends.onnx.wasm.wasmPaths = new URL(`${PACKAGES}/onnxruntime-web/dist/`, location).href;
  const parts = new Map();
  const heard = (file, ...size) => {
    if (document.body.dataset.ready) return; // what else is still being fetched must not hide what went wrong
    parts.set(file, size);
    const [loaded, total] = [...parts.values()].reduce(([a, b], [c, d]) => [a + c, b + d], [0, 0]);
    progress.value = total ? loaded / total : 0;
    show(`Loading ${file} (${(loaded / 1e6).toFixed(0)} of ${(total / 1e6).toFixed(0)} MB)`);
  };
  await hostedInstead(env, heard);
  // "./" is this page's folder. Its config.json says which files to take; the browser's cache would go by their names alone.
  env.useBrowserCache = false;
  pipe = await library.pipeline(facts.task, "./", {
    device: "wasm", progress_callback: (event) => { if (event.status === "progress") heard(event.file, event.loaded, event.total); },
  });
  template = facts.task === "text-generation" && Boolean(pipe.tokenizer.chat_template);
}

/** Where the page's address names a hosting, let the library get from there what it takes to be in this folder. */
async function hostedInstead(env, heard) {
  const given = new URLSearchParams(location.search);
  if (!given.has("from")) return;
  const hosted = await open(given.get("from"), given.get("version") ?? "latest", heard);
  if (!hosted.files.has(`${facts.variant}/config.json`)) throw new Error(`Version ${hosted.version} at ${hosted.from} has no ${facts.variant}.`);
  const here = new URL("./", location).href;
  env.fetch = (address, options) => {
    const whole = new URL(address, here).href;
    return whole.startsWith(here) ? hosted.response(`${facts.variant}/${decodeURIComponent(whole.slice(here.length))}`) : fetch(address, options);
  };
  document.getElementById("about").textContent += ` Version ${hosted.version}, step ${hosted.step}, from ${hosted.from}`;
}

function table(head, rows) {
  const made = document.createElement("table");
  for (const [kind, cells] of [["th", head], ...rows.map((row) => ["td", row])]) {
    const line = made.insertRow();
    for (const cell of cells) {
      const one = document.createElement(kind);
      one.textContent = typeof cell === "number" ? cell.toFixed(4) : String(cell);
      line.append(one);
    }
  }
  answer.replaceChildren(made);
}

async function written(given) {
  const length = Number(given.get("tokens")) || 64;
  const asked = given.get("chat") && template ? [{ role: "user", content: given.get("text") }] : given.get("text");
  answer.textContent = typeof asked === "string" && facts.task === "text-generation" ? asked : "";
  const streamer = new library.TextStreamer(pipe.tokenizer, {
    skip_prompt: facts.task === "text-generation", skip_special_tokens: true, callback_function: (text) => { answer.textContent += text; },
  });
  // The most likely token each time: what the report's samples show. Leave do_sample out to take what generation_config.json says.
  await pipe(asked, { max_new_tokens: length, do_sample: false, num_beams: 1, streamer });
}

const tasks = {
  "text-generation": written,
  "text2text-generation": written,
  async "text-classification"(given) {
    const labels = await pipe(given.get("text"), { top_k: null });
    table(["label", "score"], labels.map((one) => [one.label, one.score]));
  },
  async "token-classification"(given) {
    const tokens = await pipe(given.get("text"));
    table(["token", "label", "score"], tokens.map((one) => [one.word, one.entity, one.score]));
  },
  async "fill-mask"(given) {
    const found = await pipe(given.get("text"));
    table(["word", "score", "text"], found.map((one) => [one.token_str, one.score, one.sequence]));
  },
  async "question-answering"(given) {
    const one = await pipe(given.get("question"), given.get("text"));
    table(["answer", "score"], [[one.answer, one.score]]);
  },
  async "feature-extraction"(given) {
    const texts = [given.get("text"), given.get("second")];
    const made = await pipe.model(pipe.tokenizer(texts, { padding: true, truncation: true }));
    const whole = made.sentence_embedding?.normalize(2, -1); // of sentence-transformers: pooled as it was trained
    const vectors = whole ?? (await pipe(texts, { pooling: "mean", normalize: true }));
    const [first, second] = vectors.tolist();
    table(["numbers in a vector", "cosine similarity"], [[String(first.length), first.reduce((sum, one, at) => sum + one * second[at], 0)]]);
  },
};

async function run(event) {
  event.preventDefault();
  button.disabled = true;
  answer.hidden = false;
  show("Running …");
  const started = performance.now();
  await new Promise((done) => setTimeout(done, 30)); // so that the page is drawn before the model keeps it busy
  try {
    await tasks[facts.task](new FormData(form));
    show(`Done in ${((performance.now() - started) / 1000).toFixed(1)} s.`);
  } catch (error) {
    show(told(error), true);
  }
  button.disabled = false;
}

function prepare() {
  const reads = { "question-answering": ["question"], "feature-extraction": ["second"] }[facts.task] ?? [];
  const shown = [...reads, ...(tasks[facts.task] === written ? ["tokens"] : []), ...(template ? ["chat"] : [])];
  for (const name of shown) document.getElementById(name).hidden = false;
  if (facts.task === "question-answering") document.getElementById("prompt").textContent = "Text with the answer";
  const text = form.elements.text;
  text.value = facts.task === "fill-mask" ? `Paris is the ${pipe.tokenizer.mask_token} of France.` : template ? "How are you?" : "The lighthouse keeper";
  form.elements.second.value = "A keeper of the lighthouse";
  form.hidden = false;
  button.disabled = false;
}

document.getElementById("about").textContent = `${facts.task}, ${facts.dtype}, by transformers.js on this computer's processor. What you type stays here.`;
form.addEventListener("submit", run);
try {
  await load();
  prepare();
  show("Ready.");
} catch (error) {
  show(String(error?.message ?? error), true);
}
progress.hidden = true;
document.body.dataset.ready = "yes";

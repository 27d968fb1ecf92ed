// Loads files of a version that `ckptd` delivered to where a web server shows them. Needs nothing else.
//
//   const hosted = await open("https://models.example/my-run/");                           // what latest.json names
//   const hosted = await open("https://models.example/my-run/", "my-run-200-0a1b2c3d");    // that version, whatever is latest
//   const bytes = await hosted.bytes("web-int8/config.json");
//
// latest.json is asked for anew each time. Everything else lies at addresses whose contents never change, so caches may keep it for ever;
// it is compared with the version's manifest, and fetched past the caches where they gave something else.

const NAME = /^[\w.-]+-\d+-[0-9a-f]{8}$/;
const coder = new TextEncoder();

async function digest(bytes) {
  const made = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return [...made].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What a version's name ends with: it is made of names, sizes and digests of its files, in the order of their names' bytes. */
async function ending(files) {
  const lines = files.map((file) => [coder.encode(file.path), `${file.sha256} ${file.size} ${file.path}\n`]);
  const before = ([a], [b]) => {
    const at = a.findIndex((byte, place) => byte !== b[place]);
    return at < 0 ? a.length - b.length : a[at] - (b[at] ?? -1);
  };
  return (await digest(coder.encode(lines.sort(before).map(([, line]) => line).join("")))).slice(0, 8);
}

/** The address of a path below a hosting, whose own may end with a query that gives the right to read. */
function below(base, path, query = "") {
  const address = new URL(path.split("/").map(encodeURIComponent).join("/"), base);
  address.search = [base.search.slice(1), query].filter(Boolean).join("&");
  return address;
}

function shown(address) {
  return address.origin + address.pathname;
}

async function answer(address, cache) {
  try {
    return await fetch(address, { cache });
  } catch (error) {
    const other = address.origin === location.origin ? "" : " It is on another host than this page, which must allow that by Access-Control-Allow-Origin.";
    throw new Error(`${shown(address)} can't be fetched (${error.message}).${other}`);
  }
}

/** The body, which is of `size` bytes where that is known; null where it is longer or shorter. */
async function body(response, size, heard) {
  if (size === undefined) return new Uint8Array(await response.arrayBuffer());
  const bytes = new Uint8Array(size);
  const reader = response.body.getReader();
  let at = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    if (at + part.value.length > size) {
      await reader.cancel();
      return null;
    }
    bytes.set(part.value, at);
    at += part.value.length;
    heard(at);
  }
  return at === size ? bytes : null;
}

/** A file that `fits`: from a cache, or anew, which replaces it there, or past a CDN's, which goes by addresses. */
async function checked(base, path, version, fits, size, heard = () => {}) {
  let problem = null;
  for (const [cache, query] of [["default", ""], ["reload", ""], ["reload", `again=${Date.now()}`]]) {
    const address = below(base, path, query);
    try {
      const response = await answer(address, cache);
      if (!response.ok) throw new Error(`${shown(address)} can't be read: the server answers ${response.status}.`);
      const bytes = await body(response, size, heard);
      if (bytes !== null && (await fits(bytes))) return bytes;
      const why = "not even past this browser's cache: a proxy or CDN before the server gives another file; empty its cache, or deliver again";
      throw new Error(`${shown(address)} is not the file of version ${version}, ${why}.`);
    } catch (error) {
      problem = error;
    }
  }
  throw problem;
}

/** What latest.json says now, whatever caches hold. */
async function latest(base) {
  const address = below(base, "latest.json", `at=${Date.now()}`);
  const response = await answer(address, "no-store");
  if (!response.ok) throw new Error(`${shown(address)} can't be read: the server answers ${response.status}. Was a version delivered there?`);
  const document = await response.json().catch(() => null);
  if (!NAME.test(document?.version ?? "")) throw new Error(`${shown(address)} names no version.`);
  return document;
}

async function manifest(base, version, sha256) {
  const fits = async (bytes) => {
    if (sha256) return (await digest(bytes)) === sha256;
    try {
      return version.endsWith(`-${await ending(JSON.parse(new TextDecoder().decode(bytes)).files)}`);
    } catch {
      return false;
    }
  };
  return JSON.parse(new TextDecoder().decode(await checked(base, `${version}/MANIFEST.json`, version, fits)));
}

/** Open a version of a run: "latest", or its name. `from` is the address of the run's folder; `heard` gets path, bytes and all bytes. */
export async function open(from, version = "latest", heard = () => {}) {
  if (!globalThis.crypto?.subtle) throw new Error("A browser can check what it loads only on pages from https:// or from this computer.");
  const base = new URL(from, location.href);
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  if (version !== "latest" && !NAME.test(version)) throw new Error(`"${version}" is no version; it is latest, or a name like my-run-200-0a1b2c3d.`);
  let named = version === "latest" ? await latest(base) : { version };
  let whole;
  try {
    whole = await manifest(base, named.version, named.manifest_sha256);
  } catch (error) {
    const now = version === "latest" ? await latest(base) : named; // it may have moved, and the older version been taken away
    if (now.version === named.version) throw error;
    named = now;
    whole = await manifest(base, named.version, named.manifest_sha256);
  }
  const files = new Map(whole.files.map((file) => [file.path, file]));

  const bytes = async (path) => {
    const file = files.get(path);
    if (!file) throw new Error(`Version ${named.version} has no ${path}.`);
    const fits = async (read) => (await digest(read)) === file.sha256;
    return checked(base, `${named.version}/${path}`, named.version, fits, file.size, (count) => heard(path, count, file.size));
  };

  /** The same as a Response, for libraries that fetch; it is fetched when it is read. */
  const response = (path) => {
    const file = files.get(path);
    if (!file) return new Response(null, { status: 404 });
    const pull = async (controller) => {
      if (file.size) controller.enqueue(await bytes(path));
      controller.close();
    };
    const made = new Response(new ReadableStream({ pull }, { highWaterMark: 0 }), { headers: { "Content-Length": String(file.size) } });
    // A browser would say of a stream that fails only that it failed, not why.
    made.arrayBuffer = async () => (await bytes(path)).buffer;
    made.text = async () => new TextDecoder().decode(await bytes(path));
    made.json = async () => JSON.parse(await made.text());
    return made;
  };

  return { version: named.version, step: whole.step, at: named.at, from: shown(base), files, bytes, response };
}

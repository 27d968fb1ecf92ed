// Keeps an open page right: when the daemon has written something, the page is asked for again, and what differs of it is put in place.
// Nothing that is used just now is touched: the focus, what was opened, the place on the page. Without this script a page is as of its load.
"use strict";

const live = () => document.getElementById("live");

// Times stand in UTC in the page; a browser knows its reader's clock.
const local = (root) => {
  for (const place of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(place.dateTime);
    if (isNaN(moment)) continue;
    place.title = place.textContent;
    place.textContent = moment.toLocaleString(document.documentElement.lang, { dateStyle: "medium", timeStyle: "short" });
  }
};

const isUsed = (part) => part.contains(document.activeElement) || part.querySelector("details[open]") !== null;

const swap = (fresh) => {
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (other === null || isUsed(part)) continue;
    local(other);
    if (!part.isEqualNode(other)) part.replaceWith(document.adoptNode(other));
  }
  document.title = fresh.title;
};

let asking = false, again = false;

const say = (name) => {
  const place = live();
  if (place !== null && place.textContent !== place.dataset[name]) place.textContent = place.dataset[name];
  document.body.classList.toggle("is-live", name === "on");
};

const look = async () => {
  if (asking || document.hidden) { again = true; return; }
  asking = true; again = false;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "error" });
    if (!answer.ok) throw new Error(answer.status);
    swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
    say("on");
  } catch {
    say("off");
  }
  asking = false;
  if (again) setTimeout(look, 1000);
};

// A browser tries again by itself where a stream breaks off, and never after an answer that is none; it has six connections for all its
// tabs, so that one which nobody sees gives its own back.
const SOON = 3000, LATE = 60000;
let events = null, pause = SOON, waiting = 0;

const close = () => {
  clearTimeout(waiting);
  if (events !== null) events.close();
  events = null;
};

const listen = () => {
  close();
  if (document.hidden) return;
  events = new EventSource("/events");
  events.addEventListener("begin", () => { pause = SOON; look(); });
  events.addEventListener("changed", look);
  events.addEventListener("error", () => {
    say("off");
    if (events === null || events.readyState !== EventSource.CLOSED) return;
    clearTimeout(waiting);
    waiting = setTimeout(listen, pause);
    pause = Math.min(2 * pause, LATE);
  });
};

local(document);
if (document.querySelector("main [data-live]") !== null) {
  listen();
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else listen(); });
}

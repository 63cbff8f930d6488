// Renews the parts of the page that changed, and sends its forms without leaving it.
"use strict";

const EVERY_MS = 2000;
const lost = document.querySelector("#lost");
const word = document.querySelector("#word");
const shown = new Map();
for (const part of document.querySelectorAll("[data-part]")) shown.set(part.id, part.outerHTML);

function renew(part) {
  const old = document.getElementById(part.id);
  if (!old || shown.get(part.id) === part.outerHTML) return;
  shown.set(part.id, part.outerHTML);
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  for (const open of old.querySelectorAll("details[open]")) {
    part.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
  }
  old.replaceWith(part);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

async function refresh() {
  try {
    const answer = await fetch("/fragment");
    if (answer.status === 401) return location.assign("/login");
    if (!answer.ok) throw new Error(answer.statusText);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of fresh.querySelectorAll("[data-part]")) renew(document.adoptNode(part));
    lost.hidden = true;
  } catch {
    lost.hidden = false;
  }
}

async function send(form, button) {
  const body = new URLSearchParams(new FormData(form, button));
  try {
    const answer = await fetch(form.action, { method: "POST", body });
    const { sentence } = await answer.json();
    say(answer.ok ? form.dataset.done : sentence, answer.ok);
  } catch {
    say("Serinus does not answer; nothing was recorded.", false);
  }
  await refresh();
}

function say(sentence, good) {
  word.textContent = sentence;
  word.classList.toggle("bad", !good);
  word.hidden = false;
}

document.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  if ("sending" in form.dataset) return;
  if (form.dataset.confirm && !confirm(form.dataset.confirm)) return;
  form.dataset.sending = "";
  await send(form, event.submitter);
  delete form.dataset.sending;
});

async function live() {
  if (!document.hidden) await refresh();
  setTimeout(live, EVERY_MS);
}
setTimeout(live, EVERY_MS);

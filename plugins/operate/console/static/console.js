// Brings the parts of the page that are marked `data-live` up to date, from the same page of the server. Without it
// every page works, and stays as it was loaded.
"use strict";
(() => {
  const seconds = 5;
  const button = document.getElementById("updates");
  const note = document.getElementById("connection");
  // A page from the browser's memory, by its button "Back", may be of a session that has ended, or have old letters.
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  if (!document.querySelector("[data-live]")) return;
  // Pages of which only the state is live do not ask again for their entries or letters.
  const source = document.querySelector("main [data-live]:not(#error)") ? location.href : "./";
  let paused = sessionStorage.getItem("penstock-paused") === "yes";

  function show() {
    button.hidden = false;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Updates are paused" : "Pause updates";
  }

  // A link that has the focus is replaced by the same link, and has it again.
  function replace(old, found) {
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const same = focused && (focused.id ? `#${CSS.escape(focused.id)}` : `[href="${CSS.escape(focused.getAttribute("href") || "")}"]`);
    old.replaceChildren(...found.childNodes);
    if (same) old.querySelector(same)?.focus({ preventScroll: true });
  }

  async function update() {
    const answer = await fetch(source, { headers: { Accept: "text/html" }, cache: "no-store" });
    if (!answer.ok) {
      return answer.status === 401 ? "The session has ended: load the page again; it is older."
        : `The server refused (${answer.status}); the page is older.`;
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const old of document.querySelectorAll("[data-live]")) {
      const found = page.getElementById(old.id);
      const selected = String(getSelection()) && old.contains(getSelection().anchorNode);
      if (found && !selected && found.innerHTML !== old.innerHTML) replace(old, found);
    }
    return "";
  }

  async function turn() {
    if (!paused && !document.hidden) {
      try {
        note.textContent = await update();
      } catch {
        note.textContent = `The server did not answer at ${new Date().toLocaleTimeString()}; the page is older.`;
      }
    }
    setTimeout(turn, seconds * 1000);
  }

  button.addEventListener("click", () => {
    paused = !paused;
    sessionStorage.setItem("penstock-paused", paused ? "yes" : "no");
    show();
  });
  show();
  setTimeout(turn, seconds * 1000);
})();

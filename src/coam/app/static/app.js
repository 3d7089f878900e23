"use strict";
// The page's own script: the tour, keys, and photos of kinds that browsers do not call pictures.
(() => {
  const STEPS = [
    ["#pair", "Two photos of one place: drop, paste or take them here, or choose an example below. They stay while you move between the tabs."],
    ["#tabs", "Each tab does something else with the same two photos: lines between them, a warp, one laid onto the other, geometry, what the network looks at, light, other matchers."],
    ["#match-start", "This starts it. The first time the network is loaded, which takes a few seconds. Ctrl and Enter start it too."],
    ["#settings", "What can be changed. The defaults are those of the command line."],
    ["#tab-reconstruct-button", "More than two photos? Here they become a 3D model."],
  ];
  const SEEN = "coam-tour-seen";
  let step = -1, box = null, marked = null, before = null;

  function remember() { try { localStorage.setItem(SEEN, "1"); } catch { /* private windows */ } }
  function wasSeen() { try { return localStorage.getItem(SEEN) === "1"; } catch { return true; } }
  function end() { remember(); marked?.classList.remove("coam-toured"); box?.remove(); box = marked = null; step = -1; before?.focus?.(); }
  function show(number) {
    marked?.classList.remove("coam-toured");
    while (number < STEPS.length && !document.querySelector(STEPS[number][0])) number++;
    if (number >= STEPS.length) { end(); return; }
    step = number; marked = document.querySelector(STEPS[number][0]); marked.classList.add("coam-toured");
    if (!box) {
      before = document.activeElement; box = document.createElement("div"); box.className = "coam-tour"; box.setAttribute("role", "dialog"); box.setAttribute("aria-label", "tour");
      const text = document.createElement("p"), row = document.createElement("div"), skip = document.createElement("button"), count = document.createElement("span"), next = document.createElement("button");
      skip.className = "quiet"; skip.textContent = "End the tour"; skip.addEventListener("click", end);
      next.addEventListener("click", () => show(step + 1)); next.className = "next";
      text.setAttribute("aria-live", "polite"); row.append(skip, count, next); box.append(text, row); document.body.append(box);
    }
    box.querySelector("p").textContent = STEPS[number][1];
    box.querySelector("span").textContent = `${number + 1} / ${STEPS.length}`;
    box.querySelector(".next").textContent = number + 1 === STEPS.length ? "Done" : "Next";
    marked.scrollIntoView({ block: "center" });
    const at = marked.getBoundingClientRect(), size = box.getBoundingClientRect();
    const below = at.bottom + 12 + size.height < innerHeight || at.top < size.height + 24;
    box.style.top = `${scrollY + (below ? Math.min(at.bottom + 12, innerHeight - size.height - 12) : at.top - size.height - 12)}px`;
    box.style.left = `${Math.max(16, Math.min(at.left, innerWidth - size.width - 16))}px`;
    box.querySelector(".next").focus();
  }
  window.coamTour = { show, end, step: () => step };

  document.addEventListener("click", event => { if (event.target.closest?.("#tour-start")) show(0); });
  document.addEventListener("keydown", event => {
    if (event.key === "Escape" && box) end();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      const start = [...document.querySelectorAll("[id$='-start'].primary, [id$='-start'] .primary, button[id$='-start']")].find(b => b.offsetParent && b.id !== "tour-start");
      if (start) { event.preventDefault(); start.click(); }
    }
  });
  // The first visit: once the page stands.
  const waiting = setInterval(() => {
    if (!document.querySelector("#match-start")) return;
    clearInterval(waiting);
    if (!wasSeen() && !navigator.webdriver) show(0);
  }, 300);

  // Dropped files that the browser gives no picture's type (.ppm, .heic, .tif): named so, and the server reads them.
  const KINDS = { ppm: "x-portable-pixmap", pgm: "x-portable-graymap", pnm: "x-portable-anymap", heic: "heic", heif: "heif", tif: "tiff", tiff: "tiff", avif: "avif", jp2: "jp2" };
  document.addEventListener("drop", event => {
    const place = event.target.closest?.("#photo-1, #photo-2, #sfm-query"), file = event.dataTransfer?.files?.[0];
    const ending = file?.name.split(".").pop().toLowerCase();
    if (!place || file.type.startsWith("image/") || !KINDS[ending]) return;
    const input = place.querySelector("input[type=file]"); if (!input) return;
    event.preventDefault(); event.stopPropagation();
    const moved = new DataTransfer(); moved.items.add(new File([file], file.name, { type: `image/${KINDS[ending]}` }));
    input.files = moved.files; input.dispatchEvent(new Event("change", { bubbles: true }));
  }, true);
})();

// What the form gains from scripts beside htmx, which checks it while it is filled in: a file that is chosen or dropped is read into
// its field, and fields that have a problem say so to assistive technology.
"use strict";

const MOST_BYTES = 1048576; // the service accepts no larger form

function marked() {
  for (const problem of document.querySelectorAll(".problem[data-pointer]")) {
    const control = document.getElementById(problem.id.replace(/-problem$/, ""));
    if (!control) continue;
    if (problem.childElementCount) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  }
}

async function filled(field, file) {
  const problem = document.getElementById(`${field.id}-problem`);
  if (file.size > MOST_BYTES) {
    const told = document.createElement("p");
    told.textContent = `${file.name} is larger than 1 MiB, which no config.json is.`;
    problem.replaceChildren(told);
    marked();
    return;
  }
  field.value = await file.text();
  field.dispatchEvent(new Event("input", { bubbles: true }));
}

document.addEventListener("DOMContentLoaded", () => {
  for (const chooser of document.querySelectorAll("input[type=file][data-into]")) {
    const field = document.getElementById(chooser.dataset.into);
    chooser.closest("[hidden]")?.removeAttribute("hidden");
    chooser.addEventListener("change", () => chooser.files.length && filled(field, chooser.files[0]));
    field.addEventListener("dragover", (event) => { event.preventDefault(); field.classList.add("over"); });
    field.addEventListener("dragleave", () => field.classList.remove("over"));
    field.addEventListener("drop", (event) => {
      field.classList.remove("over");
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      filled(field, event.dataTransfer.files[0]);
    });
  }
  document.addEventListener("htmx:after:swap", marked);
  document.querySelector(".refused")?.focus();
});

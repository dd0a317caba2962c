"use strict";
(() => {
{% include "report.base.js" %}
{% include "report.view.js" %}
{% include "report.timeline.js" %}
{% include "report.memory.js" %}
{% include "report.links.js" %}
})();
